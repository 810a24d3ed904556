import { Box, Button, Grid, HStack, IconButton, NativeSelect } from "@chakra-ui/react";
import { useMemo, useState } from "react";
import { useNavigate } from "react-router-dom";

import { type Curves, type CurveSeries } from "../../api/charts";
import { withQuery } from "../../api/client";
import { type RunChart, type RunPage } from "../../api/runs";
import { paths } from "../../app/paths";
import { ChartGroup } from "../../charts/ChartContext";
import { ChartFrame } from "../../charts/ChartFrame";
import { CurvePanel } from "../../charts/CurvePanel";
import { dimensionOf, suitsLog, textOf } from "../../charts/dimensions";
import { endsInGap } from "../../charts/lines";
import { distinctLooks, type Look } from "../../charts/palette";
import { PointChart } from "../../charts/PointChart";
import { type PointSet } from "../../charts/points";
import { SeriesList } from "../../charts/SeriesList";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Icon } from "../../components/icons";
import { Loading } from "../../components/Loading";
import { NamePicker } from "../../components/NamePicker";
import { count, NOT_FINITE, number, numbers, plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { withoutNumber } from "../../lib/shortNames";
import { curvesOf, lastValue } from "../experiment/curves";
import { OpenLink, toggled } from "../experiment/TrialList";

/** Charts of one view; the API has the same limit. */
export const MOST_CHARTS = 8;

/** Points of a scatter chart, and trials whose curves are drawn. */
const MOST_POINTS = 1000;
const MOST_CURVES = 20;

/** Period of new results, in milliseconds. */
const EVERY_MS = 10_000;
const NO_SERIES: readonly CurveSeries[] = [];

/** Return a chart as a text of the address. */
export const chartText = ({ kind, y, x }: RunChart): string => JSON.stringify([kind, y, x]);

/** Return the chart of a text, null if it is none. */
export const chartOf = (text: string): RunChart | null => {
  try {
    const [kind, y, x] = JSON.parse(text) as unknown[];
    if ((kind === "scatter" || kind === "curves") && typeof y === "string" && typeof x === "string") return { kind, y, x };
  } catch {
    // An older or a mistyped link.
  }
  return null;
};

interface ChartProps {
  chart: RunChart;
  /** Filter and order of the table. */
  query: { where: string; sort: string; order: string };
  onRemove: () => void;
}

const Remove = ({ title, onRemove }: { title: string; onRemove: () => void }) => (
  <IconButton aria-label={`Remove the chart ${title}`} onClick={onRemove} size="xs" title="Remove the chart" variant="ghost">
    <Icon name="close" />
  </IconButton>
);

/** One column over another, a point per trial. */
const Scatter = ({ chart: { y: yName, x: xName }, query, onRemove }: ChartProps) => {
  const navigate = useNavigate();
  const { data, error, loading, refresh } = useData<RunPage>(withQuery("runs", { ...query, column: [xName, yName], limit: MOST_POINTS }), { everyMs: EVERY_MS, keepPrevious: true });
  const made = useMemo(() => {
    const [xs, ys] = [0, 1].map((index) => (data?.rows ?? []).map(({ values }) => values[index] ?? null)) as [unknown[], unknown[]];
    const x = dimensionOf(xName, xs, suitsLog(xs));
    const y = dimensionOf(yName, ys, false);
    const points: PointSet = { xs: x.places, ys: y.places, shades: new Float32Array(xs.length).fill(0.5), marks: null };
    return { x, y, points };
  }, [data, xName, yName]);
  const title = `${yName} over ${xName}`;
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={title} />;
  const text = (value: unknown) => (typeof value === "number" ? number(value) : textOf(value));
  return (
    <ChartFrame
      controls={<Remove onRemove={onRemove} title={title} />}
      image={[]}
      notes={[
        data.total > data.rows.length && `The first ${count(data.rows.length)} of ${plural(data.total, "trial")}, in the order of the table.`,
        made.x.absent > 0 && `${plural(made.x.absent, "trial")} without ${xName}.`,
        made.y.absent > 0 && `${plural(made.y.absent, "trial")} without ${yName}.`,
      ]}
      title={title}
    >
      <PointChart
        describe={(index) => (
          <>
            <Box fontWeight="bold">Trial {data.rows[index]?.trial_id}</Box>
            <Box>
              {xName} {text(data.rows[index]?.values[0])}
            </Box>
            <Box>
              {yName} {text(data.rows[index]?.values[1])}
            </Box>
          </>
        )}
        height={260}
        label={title}
        onPick={(index) => {
          const id = data.rows[index]?.trial_id;
          if (id !== undefined) void navigate(paths.trial(id));
        }}
        points={made.points}
        x={made.x}
        y={made.y}
      />
    </ChartFrame>
  );
};

/** Name of a metric without its namespace and quotes. */
const metricName = (name: string): string => name.replace(/^metrics\./, "").replaceAll('"', "");

interface LegendProps {
  label: string;
  series: readonly CurveSeries[];
  looks: readonly Look[];
  marked: ReadonlySet<string>;
  onMark: (id: string) => void;
  onFocus: (id: string | null) => void;
}

/** Names of the curves in their looks, with their last values and links to their trials. */
const Legend = ({ label, series, looks, ...rest }: LegendProps) => {
  const last = numbers(series.map(lastValue));
  const items = series.map((one, index) => ({
    id: String(one.trial_id),
    name: `Trial ${one.trial_id}, ${withoutNumber(one.trial_name)}`,
    look: looks[index] ?? { color: 0, dash: 0 },
    values: [endsInGap({ ys: one.y }) ? NOT_FINITE : (last[index] ?? "")],
    extra: <OpenLink id={one.trial_id} name={`trial ${one.trial_id}`} />,
  }));
  return <SeriesList columns={["last"]} items={items} label={label} maxHeight="9.5rem" {...rest} />;
};

/** A metric of the first trials of the table. */
const MetricCurves = ({ chart: { y }, query, onRemove }: ChartProps) => {
  const [focus, setFocus] = useState<string | null>(null);
  const [mark, setMark] = useState<readonly string[]>([]);
  const page = useData<RunPage>(withQuery("runs", { ...query, limit: MOST_CURVES }), { everyMs: EVERY_MS, keepPrevious: true });
  const ids = page.data?.rows.map(({ trial_id }) => trial_id) ?? [];
  const path = (group: string) => withQuery("curves", { trial: ids, metric: metricName(y), group, x: "batches", max_points: 500 });
  const validated = useData<Curves>(ids.length > 0 ? path("validation") : null, { everyMs: EVERY_MS, keepPrevious: true });
  const isTraining = validated.data?.series.length === 0;
  const trained = useData<Curves>(isTraining ? path("training") : null, { everyMs: EVERY_MS, keepPrevious: true });
  const data = isTraining ? trained.data : validated.data;
  const series = data?.series ?? NO_SERIES;
  const looks = useMemo(() => distinctLooks(series.map((one) => one.number)), [series]);
  const marked = useMemo(() => new Set(mark), [mark]);
  const made = useMemo(() => {
    const { curves, gaps } = curvesOf(data, 0, marked, looks);
    // The trials are of several experiments: none of them is the best one.
    return { curves: curves.map((curve) => ({ ...curve, strong: marked.has(curve.id) })), gaps };
  }, [data, marked, looks]);
  const error = page.error ?? validated.error;
  if (page.loading || validated.loading || trained.loading) return <Loading />;
  if (page.data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={page.refresh} what={y} />;
  const without = ids.length - series.length;
  const onMark = (id: string) => setMark(toggled(mark, id));
  return (
    <CurvePanel
      axis="batches"
      controls={<Remove onRemove={onRemove} title={y} />}
      curves={made.curves}
      focus={focus}
      height={260}
      id={y}
      names={<Legend label={`Trials of the chart ${y}`} looks={looks} marked={marked} onFocus={setFocus} onMark={onMark} series={series} />}
      notes={[
        page.data.total > ids.length && `The first ${count(ids.length)} of ${plural(page.data.total, "trial")}, in the order of the table.`,
        without > 0 && `${plural(without, "trial")} ${without === 1 ? "has" : "have"} not reported it.`,
        made.gaps > 0 && `${count(made.gaps)} values are NaN or infinite: the curves have gaps there.`,
      ]}
      onPick={onMark}
      title={y}
      xName="batches"
    />
  );
};

/** Adds a chart. */
const Adder = ({ names, metrics, onAdd }: { names: readonly string[]; metrics: readonly string[]; onAdd: (chart: RunChart) => void }) => {
  const [kind, setKind] = useState<RunChart["kind"]>("scatter");
  const [y, setY] = useState<string | null>(null);
  const [x, setX] = useState<string | null>(null);
  const isReady = y !== null && (kind === "curves" || x !== null);
  return (
    <HStack gap={2} mb={2} wrap="wrap">
      <NativeSelect.Root size="sm" width="120px">
        <NativeSelect.Field
          aria-label="Kind of the chart"
          onChange={({ target }) => {
            setKind(target.value === "curves" ? "curves" : "scatter");
            setY(null);
          }}
          value={kind}
        >
          <option value="scatter">scatter</option>
          <option value="curves">curves</option>
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
      <NamePicker key={kind} label={kind === "curves" ? "Metric of the chart" : "Column of the y axis"} onChange={setY} options={kind === "curves" ? metrics : names} placeholder={kind === "curves" ? "Metric" : "y axis"} value={y} />
      {kind === "curves" ? null : <NamePicker label="Column of the x axis" onChange={setX} options={names} placeholder="x axis" value={x} />}
      <Button
        disabled={!isReady}
        onClick={() => {
          if (y !== null) onAdd({ kind, y, x: kind === "curves" ? "" : (x ?? "") });
        }}
        size="sm"
        variant="outline"
      >
        <Icon name="plus" /> Pin
      </Button>
    </HStack>
  );
};

interface Props {
  charts: readonly RunChart[];
  isAdding: boolean;
  names: readonly string[];
  metrics: readonly string[];
  query: ChartProps["query"];
  onChange: (charts: readonly RunChart[]) => void;
}

/** The pinned charts of a view. */
export const RunCharts = ({ charts, isAdding, names, metrics, query, onChange }: Props) => (
  <ChartGroup>
    {isAdding && charts.length < MOST_CHARTS ? <Adder metrics={metrics} names={names} onAdd={(chart) => onChange([...charts, chart])} /> : null}
    {charts.length === 0 ? null : (
      <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", xl: charts.length > 1 ? "minmax(0, 1fr) minmax(0, 1fr)" : "minmax(0, 1fr)" }} mb={3}>
        {charts.map((chart, index) => {
          const remove = () => onChange(charts.filter((_, other) => other !== index));
          const key = `${index} ${chartText(chart)}`;
          return chart.kind === "scatter" ? (
            <Scatter chart={chart} key={key} onRemove={remove} query={query} />
          ) : (
            <MetricCurves chart={chart} key={key} onRemove={remove} query={query} />
          );
        })}
      </Grid>
    )}
  </ChartGroup>
);
