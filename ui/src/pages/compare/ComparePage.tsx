import { Box, Button, CloseButton, Flex, Grid, Heading, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { type Comparison, type Curves, type Differences, type MetricName } from "../../api/charts";
import { withQuery } from "../../api/client";
import { paths } from "../../app/paths";
import { ChartGroup } from "../../charts/ChartContext";
import { CurveOptions, USUAL_CURVE_VIEW } from "../../charts/CurveOptions";
import { CurvePanel } from "../../charts/CurvePanel";
import { distinctLooks, type Look } from "../../charts/palette";
import { Swatch } from "../../charts/Swatch";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { NamePicker } from "../../components/NamePicker";
import { Segments } from "../../components/Segments";
import { Stale } from "../../components/Stale";
import { StateBadge } from "../../components/StateBadge";
import { count, number, plural } from "../../format/numbers";
import { duration } from "../../format/times";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { inOrder, metricKey, metricOf } from "../../lib/metrics";
import { shownState } from "../../lib/states";
import { curvesOf } from "../experiment/curves";
import { axesOf, X_AXES } from "../experiment/axes";
import { MOST_COMPARED } from "../experiment/TrialList";
import { ENDED } from "../trial/words";
import { DifferenceRows } from "./DifferenceRows";
import { MediaSection } from "./MediaSection";
import { countText, differenceGroups } from "./differences";
import { TrialAdder } from "./TrialAdder";

const USUAL = { ...USUAL_CURVE_VIEW, trial: [] as readonly string[], metric: [] as readonly string[], x: "batches" };

/** Charts before the user chooses metrics. */
const SHOWN = 2;

const NONE_MARKED: ReadonlySet<string> = new Set();

type View = ReturnType<typeof useUrlState<typeof USUAL>>[0];

interface ChartProps {
  ids: readonly string[];
  looks: ReadonlyMap<number, Look>;
  metric: MetricName;
  view: View;
  isLive: boolean;
  focus: string | null;
}

const MetricChart = ({ ids, looks, metric, view, isLive, focus }: ChartProps) => {
  const x = X_AXES.find(({ value }) => value === view.x)?.value ?? "batches";
  const path = withQuery("curves", { trial: ids, metric: metric.name, group: metric.group, x, max_points: 2_000 });
  const { data, error, loading, stale, refresh } = useData<Curves>(path, { everyMs: isLive ? LIVE_MS : null, keepPrevious: true });
  const made = useMemo(() => {
    const own = data?.series.map(({ trial_id }) => looks.get(trial_id) ?? { color: 0, dash: 0 });
    const { curves, ...rest } = curvesOf(data, view.smooth, NONE_MARKED, own);
    return { curves: curves.map((curve) => ({ ...curve, strong: false })), ...rest };
  }, [data, looks, view.smooth]);
  const title = metricKey(metric);
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={`Curves of ${title}`} />;
  const without = ids.length - data.series.length;
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={`Curves of ${title}`} />} stale={stale}>
      <CurvePanel
        axis={x}
        curves={made.curves}
        focus={focus}
        height={300}
        id={title}
        legend
        notes={[
          without > 0 && `${plural(without, "trial")} ${without === 1 ? "has" : "have"} not reported it.`,
          made.gaps > 0 && `${count(made.gaps)} values are NaN or infinite: the curves have gaps there.`,
        ]}
        robust={view.robust}
        title={title}
        xKind={x === "time" ? "elapsed" : "number"}
        xName={x}
        yLog={view.logy}
      />
    </Stale>
  );
};

interface OverviewProps {
  data: Comparison;
  differences: Differences | undefined;
  looks: ReadonlyMap<number, Look>;
  onRemove: (id: number) => void;
  onFocus: (id: string | null) => void;
}

const Overview = ({ data, differences, looks, onRemove, onFocus }: OverviewProps) => {
  const groups = useMemo(() => (differences === undefined ? [] : differenceGroups(differences)), [differences]);
  const ids = data.trials.map(({ trial_id }) => trial_id);
  const isOf = differences !== undefined && differences.trials.length === ids.length && differences.trials.every((id, index) => id === ids[index]);
  const facts: { name: string; cells: string[] }[] = [
    { name: "Best metric", cells: data.trials.map(({ best_metric, best_step, metric }) => `${metric === null ? "" : `${metric} `}${number(best_metric)}${best_step === null ? "" : ` at step ${count(best_step)}`}`) },
    { name: "Trained for", cells: data.trials.map(({ duration_s }) => duration(duration_s)) },
    { name: "Number in its experiment", cells: data.trials.map(({ number: place }) => String(place)) },
    { name: "Attempts", cells: data.trials.map(({ attempts }) => String(attempts)) },
    ...(new Set(data.trials.map(({ experiment_id }) => experiment_id)).size > 1 ? [{ name: "Experiment", cells: data.trials.map(({ experiment }) => experiment) }] : []),
  ];
  return (
    <Box aria-label="Differences between the trials" borderColor="border" borderRadius="md" borderWidth={1} overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm">
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader minW="180px">{isOf ? countText(differences) : ""}</Table.ColumnHeader>
            {data.trials.map(({ trial_id, name, display_name, state, never_fits }) => (
              <Table.ColumnHeader key={trial_id} maxW="260px" minW="150px" onMouseEnter={() => onFocus(String(trial_id))} onMouseLeave={() => onFocus(null)}>
                <HStack gap={2}>
                  <Swatch look={looks.get(trial_id) ?? { color: 0, dash: 0 }} />
                  <PageLink title={name} to={paths.trial(trial_id)}>
                    {display_name ?? `Trial ${trial_id}`}
                  </PageLink>
                  {data.trials.length > 2 ? (
                    <CloseButton aria-label={`Remove trial ${trial_id}`} onClick={() => onRemove(trial_id)} size="2xs" />
                  ) : null}
                </HStack>
                <StateBadge small state={shownState({ state, never_fits })} />
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {facts.map(({ name, cells }) => (
            <Table.Row key={name}>
              <Table.Cell color="fg.muted">{name}</Table.Cell>
              {cells.map((cell, index) => (
                <Table.Cell key={data.trials[index]?.trial_id}>{cell}</Table.Cell>
              ))}
            </Table.Row>
          ))}
          {isOf ? groups.map((group) => <DifferenceRows group={group} ids={ids} key={`${group.subject} ${ids.join()}`} />) : null}
        </Table.Body>
      </Table.Root>
      {differences === undefined || differences.same.length === 0 ? null : (
        <Text color="fg.muted" fontSize="xs" p={2}>
          The same, and not shown: {differences.same.join(", ")}. All other values of the configurations are the same as well.
        </Text>
      )}
    </Box>
  );
};

const Compared = ({ ids, onIds }: { ids: readonly string[]; onIds: (ids: readonly string[]) => void }) => {
  const [view, setView] = useUrlState(USUAL);
  const [focus, setFocus] = useState<string | null>(null);
  const [isLive, setLive] = useState(true);
  const { data, error, loading, refresh, stale } = useData<Comparison>(withQuery("compare", { trial: ids }), { everyMs: isLive ? 2 * LIVE_MS : null, keepPrevious: true });
  const compared = useData<Differences>(withQuery("differences/trials", { trial: ids }), { everyMs: isLive ? 6 * LIVE_MS : null, keepPrevious: true });
  const running = data === undefined || data.trials.some(({ state }) => !ENDED.has(state));
  if (running !== isLive) setLive(running);
  const looks = useMemo(() => {
    const found = distinctLooks(data?.trials.map(({ number: place }) => place) ?? []);
    return new Map(data?.trials.map(({ trial_id }, index) => [trial_id, found[index] ?? { color: 0, dash: 0 }]));
  }, [data]);
  const all = useMemo(() => inOrder(data?.metrics ?? [], null), [data]);
  const chosen = useMemo(() => {
    const known = view.metric.map(metricOf).filter((metric): metric is MetricName => metric !== null);
    return known.length > 0 ? known : all.slice(0, SHOWN);
  }, [view.metric, all]);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Comparison" />;
  const isShown = ids.every((id) => data.trials.some(({ trial_id }) => String(trial_id) === id));
  const keys = chosen.map(metricKey);
  const names = all.map(metricKey).filter((name) => !keys.includes(name));
  return (
    <ChartGroup>
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} wasKnown={isShown} what="Comparison" />}
      {compared.error === null || error !== null ? null : <ErrorNotice error={compared.error} onRetry={compared.refresh} what="Differences" />}
      <Stack gap={4}>
        <Stale stale={stale}>
          <Overview data={data} differences={compared.data} looks={looks} onFocus={setFocus} onRemove={(id) => onIds(ids.filter((item) => item !== String(id)))} />
        </Stale>
        <Flex align="center" columnGap={5} rowGap={2} wrap="wrap">
          <HStack gap={2}>
            <Text fontSize="sm">X axis</Text>
            <Segments label="X axis" onChange={(x) => setView({ x })} options={axesOf(data.has_epochs, view.x)} value={X_AXES.find(({ value }) => value === view.x)?.value ?? "batches"} />
          </HStack>
          <CurveOptions onChange={setView} view={view} />
          <NamePicker key={keys.join()} label="Show a further metric" onChange={(name) => setView({ metric: [...keys, name] })} options={names} placeholder="Add a chart of a metric" value={null} />
          {view.metric.length > 0 ? (
            <Button onClick={() => setView({ metric: [] })} size="xs" variant="ghost">
              Usual metrics
            </Button>
          ) : null}
        </Flex>
        {all.length === 0 ? <EmptyState title="None of the trials has reported a metric." /> : null}
        <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", xl: chosen.length > 1 ? "minmax(0, 1fr) minmax(0, 1fr)" : "minmax(0, 1fr)" }}>
          {chosen.map((metric) => (
            <MetricChart focus={focus} ids={ids} isLive={isLive} key={metricKey(metric)} looks={looks} metric={metric} view={view} />
          ))}
        </Grid>
        <MediaSection ids={ids} isLive={isLive} />
      </Stack>
    </ChartGroup>
  );
};

/** 2 to 8 trials: their curves on top of each other, and what differs between them. */
export const ComparePage = () => {
  const [view, setView] = useUrlState(USUAL);
  const ids = [...new Set(view.trial.filter((id) => /^\d{1,18}$/.test(id)))].slice(0, MOST_COMPARED);
  const onIds = (trial: readonly string[]) => setView({ trial });
  return (
    <>
      <Flex align="center" gap={3} mb={3} wrap="wrap">
        <Heading size="md">{ids.length < 2 ? "Compare trials" : `Compare ${plural(ids.length, "trial")}`}</Heading>
        {ids.length >= MOST_COMPARED ? null : <TrialAdder known={ids} onAdd={(id) => onIds([...ids, id])} />}
      </Flex>
      {ids.length < 2 ? (
        <EmptyState
          text={
            <>
              Add {ids.length === 0 ? "two trials" : "a second trial"} above, or select trials in the table or among the curves of an <PageLink to={paths.experiments}>experiment</PageLink>.
            </>
          }
          title={`A comparison takes 2 to ${MOST_COMPARED} trials${ids.length === 1 ? `, and trial ${ids[0] ?? ""} is chosen` : ""}.`}
        />
      ) : (
        <Compared ids={ids} onIds={onIds} />
      )}
    </>
  );
};
