import { Box, Button, Flex, Grid, Heading, HStack, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import { type Trial } from "../../api/trial";
import { ChartGroup } from "../../charts/ChartContext";
import { CurveOptions, USUAL_CURVE_VIEW } from "../../charts/CurveOptions";
import { EmptyState } from "../../components/EmptyState";
import { SearchBar } from "../../components/SearchBar";
import { Segments } from "../../components/Segments";
import { plural } from "../../format/numbers";
import { instant } from "../../format/times";
import { useNow } from "../../hooks/useNow";
import { useUrlState } from "../../hooks/useUrlState";
import { matching } from "../../lib/matching";
import { byName, inOrder } from "../../lib/metrics";
import { LogAtTime } from "./log/LogAtTime";
import { MetricCharts } from "./MetricCharts";
import { type XAxis } from "./series";
import { SystemSection } from "./SystemSection";
import { TimelineSection } from "./TimelineSection";
import { TimingsSection } from "./TimingsSection";
import { StepTimesSection } from "./StepTimesSection";
import { StragglerNotices } from "./StragglerNotices";
import { ENDED } from "./words";

const X_AXES: readonly { value: XAxis; text: string }[] = [
  { value: "clock", text: "Time" },
  { value: "batches", text: "Batches" },
  { value: "epochs", text: "Epochs" },
];

const USUAL = { ...USUAL_CURVE_VIEW, x: "clock", q: "", shown: 6 };

/** Charts that one more click shows. */
const MORE = 12;

/** Steps in which the time axes of a living trial move on, in milliseconds. */
const STEP_MS = 2_000;

/** Return the range of time from the first start of the trial to its end, or to now, in seconds. */
const lifeOf = (attempts: Trial["attempts_list"], end: string | null, nowMs: number): readonly [number, number] | null => {
  const starts = attempts.map(({ started_at, granted_at }) => instant(started_at ?? granted_at)).filter((at) => at !== null);
  const from = Math.min(...starts);
  const to = instant(end) ?? nowMs;
  return starts.length === 0 || to <= from ? null : [from / 1000, to / 1000];
};

/** Curves, system metrics, timings, step times and events of a trial on a common time axis. */
export const TrainingTab = ({ trial, metric }: { trial: Trial; metric: string | null }) => {
  const [view, setView] = useUrlState(USUAL);
  const x = X_AXES.find(({ value }) => value === view.x)?.value ?? "clock";
  const isLive = !ENDED.has(trial.state);
  const names = useMemo(() => byName(inOrder(trial.metrics.filter(({ group }) => group !== "builtin"), metric)).map(({ name }) => name), [trial.metrics, metric]);
  const builtin = useMemo(() => inOrder(trial.metrics.filter(({ group }) => group === "builtin"), null).map(({ name }) => name), [trial.metrics]);
  const found = useMemo(() => matching(names, view.q, Math.max(1, view.shown)), [names, view.q, view.shown]);
  const { attempts_list, ended_at } = trial;
  const nowMs = useNow(STEP_MS);
  const life = useMemo(() => lifeOf(attempts_list, ended_at, isLive ? nowMs : 0), [attempts_list, ended_at, isLive, nowMs]);
  if (trial.metrics.length === 0 && attempts_list.every(({ started_at }) => started_at === null)) {
    return (
      <ChartGroup>
        <EmptyState text="Curves, system metrics and timings appear when its ranks are started." title="The trial has not started yet." />
        <TimelineSection isLive={isLive} trialId={trial.trial_id} />
      </ChartGroup>
    );
  }
  return (
    <ChartGroup>
      <LogAtTime>
      <Stack gap={4}>
        <Flex align="center" columnGap={5} rowGap={2} wrap="wrap">
          <HStack gap={2}>
            <Text fontSize="sm">X axis of the metrics</Text>
            <Segments label="X axis of the metrics" onChange={(next) => setView({ x: next })} options={X_AXES.filter(({ value }) => value !== "epochs" || trial.has_epochs || x === "epochs")} value={x} />
          </HStack>
          <CurveOptions onChange={setView} view={view} />
          {names.length > USUAL.shown ? <SearchBar onChange={(q) => setView({ q, shown: USUAL.shown })} placeholder={`Search ${plural(names.length, "metric")}`} value={view.q} width="240px" /> : null}
        </Flex>
        {names.length === 0 ? (
          <EmptyState command={'ctx.report(step, {"loss": loss})'} text="Curves appear when the training reports a metric:" title="The trial has not reported a metric yet." />
        ) : found.shown.length === 0 ? (
          <EmptyState title="No metric has this name." />
        ) : (
          <Box>
            <MetricCharts isLive={isLive} life={life} names={found.shown} trialId={trial.trial_id} view={view} x={x} />
            {found.more > 0 ? (
              <Button mt={2} onClick={() => setView({ shown: view.shown + MORE })} size="sm" variant="outline">
                Show {Math.min(MORE, found.more)} of {plural(found.more, "further metric")}
              </Button>
            ) : null}
          </Box>
        )}
        {builtin.length === 0 ? null : (
          <Box>
            <Heading mb={1} size="md">
              Built-in metrics
            </Heading>
            <Text color="fg.muted" fontSize="sm" mb={2}>
              Recorded by the training library itself, of all ranks together.
            </Text>
            <MetricCharts group="builtin" isLive={isLive} life={life} names={builtin} trialId={trial.trial_id} view={view} x={x} />
          </Box>
        )}
        <StragglerNotices stragglers={trial.stragglers} />
        <SystemSection isLive={isLive} life={life} slots={trial.slots} trialId={trial.trial_id} />
        <Heading size="md">Where the time goes</Heading>
        <Grid gap={3} gridTemplateColumns="minmax(0, 1fr)">
          <TimingsSection attempts={trial.attempts_list.length} isLive={isLive} life={life} trialId={trial.trial_id} />
          <StepTimesSection attempts={trial.attempts_list.length} isLive={isLive} life={life} trialId={trial.trial_id} />
        </Grid>
        <TimelineSection isLive={isLive} trialId={trial.trial_id} />
      </Stack>
      </LogAtTime>
    </ChartGroup>
  );
};
