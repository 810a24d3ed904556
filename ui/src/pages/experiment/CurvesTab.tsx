import { Button, Flex, Grid, HStack, Stack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { isOpen } from "../../actions/experiments";
import { type Curves, type MetricName } from "../../api/charts";
import { withQuery } from "../../api/client";
import { type Experiment } from "../../api/experiment";
import { ChartGroup } from "../../charts/ChartContext";
import { CurveOptions, USUAL_CURVE_VIEW } from "../../charts/CurveOptions";
import { CurvePanel } from "../../charts/CurvePanel";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Icon } from "../../components/icons";
import { Loading } from "../../components/Loading";
import { NamePicker } from "../../components/NamePicker";
import { Segments } from "../../components/Segments";
import { Stale } from "../../components/Stale";
import { count } from "../../format/numbers";
import { LIVE_MS, type Loaded, useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { inOrder, metricKey, metricOf } from "../../lib/metrics";
import { axesOf, X_AXES } from "./axes";
import { curvesOf } from "./curves";
import { toggled, TrialList } from "./TrialList";

const SELECTIONS = [
  { value: "best", text: "Best" },
  { value: "latest", text: "Latest" },
  { value: "spread", text: "Spread" },
] as const;

const LIMITS = ["10", "25", "50", "100"].map((value) => ({ value, text: value }));

const USUAL = {
  ...USUAL_CURVE_VIEW,
  metric: [] as readonly string[],
  x: "batches",
  logx: false,
  select: "best",
  limit: 25,
  mark: [] as readonly string[],
};

/** Points per series: many series share the width of the chart. */
const pointsOf = (limit: number): number => (limit <= 10 ? 2_000 : limit <= 25 ? 1_000 : 500);

const chosenOf = <T extends string>(options: readonly { value: T }[], text: string): T =>
  options.find(({ value }) => value === text)?.value ?? (options[0]?.value as T);

export type CurvesView = ReturnType<typeof useUrlState<typeof USUAL>>[0];

interface ChartProps {
  metric: MetricName;
  loaded: Loaded<Curves>;
  view: CurvesView;
  focus: string | null;
  onMark: (id: string) => void;
  onRemove: (() => void) | null;
}

/** Return the path of the curves of a metric. Without a metric they are those of the searcher's, in validations. */
const curvesPath = (id: number | string, metric: MetricName | null, view: CurvesView): string =>
  withQuery(`experiments/${id}/curves`, {
    metric: metric?.name, group: metric?.group, x: chosenOf(X_AXES, view.x), select: chosenOf(SELECTIONS, view.select), limit: view.limit, max_points: pointsOf(view.limit),
  });

/** Return the path of the first chart as far as the address tells it, or null. */
export const useUsualCurvesPath = (id: string): string | null => {
  const [view] = useUrlState(USUAL);
  return view.metric.length > 0 ? null : curvesPath(id, null, view);
};

const useCurves = (experiment: Experiment, metric: MetricName | undefined, view: CurvesView) => {
  const { experiment_id, metric: own } = experiment;
  const isOwn = metric?.name === own && metric?.group === "validation";
  const path = metric === undefined ? null : curvesPath(experiment_id, isOwn ? null : metric, view);
  return useData<Curves>(path, { everyMs: isOpen(experiment) ? LIVE_MS : null, keepPrevious: true });
};

const MetricChart = ({ metric, loaded, view, focus, onMark, onRemove }: ChartProps) => {
  const { data, error, loading, stale, refresh } = loaded;
  const marked = useMemo(() => new Set(view.mark), [view.mark]);
  const made = useMemo(() => curvesOf(data, view.smooth, marked), [data, view.smooth, marked]);
  const x = chosenOf(X_AXES, view.x);
  const title = metricKey(metric);
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={`Curves of ${title}`} />;
  const hidden = data.total_trials - data.series.length;
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={`Curves of ${title}`} />} stale={stale}>
      <CurvePanel
        axis={x}
        controls={
          onRemove === null ? null : (
            <Button aria-label={`Remove the chart of ${title}`} onClick={onRemove} size="xs" variant="ghost">
              <Icon name="close" />
            </Button>
          )
        }
        curves={made.curves}
        focus={focus}
        height={340}
        id={title}
        notes={[
          hidden > 0 && `${count(data.series.length)} of ${count(data.total_trials)} trials are shown.`,
          made.gaps > 0 && `${count(made.gaps)} values are NaN or infinite: the curves have gaps there.`,
          data.series.some(({ sampled }) => sampled) && "Some trials have more reports than were read: extreme values between the points may be missing.",
          made.sorted > 0 && `The clock of a host ran backwards in ${count(made.sorted)} trials: their points are in the order of time.`,
        ]}
        onPick={onMark}
        robust={view.robust}
        title={title}
        xKind={x === "time" ? "elapsed" : "number"}
        xLog={view.logx}
        xName={x}
        yLog={view.logy}
      />
    </Stale>
  );
};

const FetchedChart = ({ experiment, ...rest }: Omit<ChartProps, "loaded"> & { experiment: Experiment }) => (
  <MetricChart {...rest} loaded={useCurves(experiment, rest.metric, rest.view)} />
);

/** Learning curves of the experiment's trials. */
export const CurvesTab = ({ experiment }: { experiment: Experiment }) => {
  const [view, setView] = useUrlState(USUAL);
  const [focus, setFocus] = useState<string | null>(null);
  const all = useMemo(() => inOrder(experiment.metrics, experiment.metric), [experiment.metrics, experiment.metric]);
  const names = useMemo(() => all.map(metricKey), [all]);
  const chosen = useMemo(() => {
    const known = view.metric.map(metricOf).filter((metric): metric is MetricName => metric !== null);
    return known.length > 0 ? known : all.slice(0, 1);
  }, [view.metric, all]);
  const [first] = chosen;
  const keys = chosen.map(metricKey);
  const main = useCurves(experiment, first, view);
  const setMark = (mark: readonly string[]) => setView({ mark });
  const onMark = (id: string) => setMark(toggled(view.mark, id));
  const remove = (metric: MetricName) => setView({ metric: keys.filter((key) => key !== metricKey(metric)) });
  if (first === undefined) {
    return <EmptyState command={'ctx.report(step, {"loss": loss})'} text="Curves appear when a trial reports a metric:" title="No trial has reported a metric yet." />;
  }
  const limit = LIMITS.some(({ value }) => value === String(view.limit)) ? String(view.limit) : "25";
  return (
    <ChartGroup>
      <Stack gap={3}>
        <Flex columnGap={5} rowGap={2} wrap="wrap">
          <HStack gap={2} wrap="wrap">
            <Text fontSize="sm">X axis</Text>
            <Segments label="X axis" onChange={(x) => setView({ x })} options={axesOf(experiment.has_epochs, view.x)} value={chosenOf(X_AXES, view.x)} />
            <Button aria-pressed={view.logx} bg={view.logx ? "bg.emphasized" : undefined} onClick={() => setView({ logx: !view.logx })} size="xs" variant="outline">
              log
            </Button>
          </HStack>
          <HStack gap={2} wrap="wrap">
            <Text fontSize="sm">Trials</Text>
            <Segments label="Choice of trials" onChange={(select) => setView({ select })} options={SELECTIONS} value={chosenOf(SELECTIONS, view.select)} />
            <Segments label="Number of trials" onChange={(next) => setView({ limit: Number(next) })} options={LIMITS} value={limit} />
          </HStack>
          <CurveOptions onChange={setView} view={view} />
        </Flex>
        <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", lg: "minmax(0, 1fr) 360px" }}>
          <Stack gap={3} minW={0}>
            <MetricChart focus={focus} loaded={main} metric={first} onMark={onMark} onRemove={keys.length > 1 ? () => remove(first) : null} view={view} />
            {chosen.slice(1).map((metric) => (
              <FetchedChart experiment={experiment} focus={focus} key={metricKey(metric)} metric={metric} onMark={onMark} onRemove={() => remove(metric)} view={view} />
            ))}
            <HStack gap={2}>
              <NamePicker
                key={keys.join()}
                label="Show a further metric"
                onChange={(name) => setView({ metric: [...keys.filter((key) => key !== name), name] })}
                options={names.filter((name) => !keys.includes(name))}
                placeholder="Add a chart of a metric"
                value={null}
              />
              {keys.length > 1 || view.metric.length > 0 ? (
                <Button onClick={() => setView({ metric: [] })} size="sm" variant="ghost">
                  Only {experiment.metric ?? "the first metric"}
                </Button>
              ) : null}
            </HStack>
          </Stack>
          <TrialList data={main.data} mark={view.mark} metric={first} onFocus={setFocus} onMark={setMark} smallerIsBetter={first.name === experiment.metric ? experiment.smaller_is_better : null} />
        </Grid>
      </Stack>
    </ChartGroup>
  );
};
