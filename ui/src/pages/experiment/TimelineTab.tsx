import { Box, Table } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { isOpen } from "../../actions/experiments";
import { type SlotSpan, type SlotTimeline } from "../../api/charts";
import { type Experiment } from "../../api/experiment";
import { paths } from "../../app/paths";
import { ChartFrame } from "../../charts/ChartFrame";
import { slotRows, usedShare } from "../../charts/slotTimeline";
import { ATTEMPT_LOOKS, SlotTimelineChart } from "../../charts/SlotTimelineChart";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { Stale } from "../../components/Stale";
import { StateBadge } from "../../components/StateBadge";
import { Elapsed, Time } from "../../components/Time";
import { count, number, percent } from "../../format/numbers";
import { duration, instant } from "../../format/times";
import { useData } from "../../hooks/useData";
import { useNow } from "../../hooks/useNow";
import { placementWords } from "../queue/columns";

/** Period of new spans of a running experiment, in milliseconds. Each lays out all bars again. */
const EVERY_MS = 5_000;

/** Rows of the table. */
const MOST = 300;

/** Return the path of the timeline of an experiment. */
export const timelinePath = (path: string): string => `${path}/timeline`;

const waited = ({ granted_at, started_at }: SlotSpan): string => {
  const [from, to] = [instant(granted_at), instant(started_at)];
  return from === null || to === null ? "" : duration(Math.max(0, to - from) / 1000);
};

const Spans = ({ spans }: { spans: readonly SlotSpan[] }) => (
  <Box aria-label="Attempts with their slots" maxH="30rem" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          {["Trial", "Attempt", "State", "Slots of hosts", "Got slots", "Until its start", "Held for"].map((name) => (
            <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {spans.slice(-MOST).map((span) => (
          <Table.Row key={`${span.trial_id} ${span.attempt}`}>
            <Table.Cell>
              <PageLink to={paths.trial(span.trial_id)}>Trial {span.trial_id}</PageLink>
            </Table.Cell>
            <Table.Cell>{span.attempt}</Table.Cell>
            <Table.Cell>
              <StateBadge small state={span.state} />
            </Table.Cell>
            <Table.Cell>{placementWords(span.placement)}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">
              <Time at={span.granted_at} />
            </Table.Cell>
            <Table.Cell>{waited(span)}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">
              <Elapsed from={span.granted_at} until={span.ended_at} />
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

/** Trials of an experiment on the slots that they held. */
export const TimelineTab = ({ experiment }: { experiment: Experiment }) => {
  const navigate = useNavigate();
  const isLive = isOpen(experiment);
  const { data, error, loading, stale, refresh } = useData<SlotTimeline>(timelinePath(`experiments/${experiment.experiment_id}`), { everyMs: isLive ? EVERY_MS : null, keepPrevious: true });
  const now = useNow(EVERY_MS) / 1000;
  const isGrowing = data?.spans.some(({ ended_at }) => ended_at === null) ?? false;
  const nowS = isGrowing ? now : 0;
  const rows = useMemo(() => slotRows(data?.spans ?? [], nowS), [data, nowS]);
  const share = useMemo(() => usedShare(data?.spans ?? [], nowS), [data, nowS]);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timeline" />;
  if (data.spans.length === 0) return <EmptyState text="Trials appear here when they get slots." title="No trial of this experiment has held a slot yet." />;
  const describe = (span: SlotSpan) => (
    <>
      <Box fontWeight="bold">
        Trial {span.trial_id} (number {span.number}), attempt {span.attempt}: {span.state}
      </Box>
      <Box>{placementWords(span.placement)}</Box>
      {span.metric === null ? null : (
        <Box>
          {experiment.metric ?? "best metric"} {number(span.metric)}
        </Box>
      )}
      <Box color="fg.muted">
        <Time at={span.granted_at} />, for <Elapsed from={span.granted_at} until={span.ended_at} />
        {waited(span) === "" ? "" : `, started after ${waited(span)}`}
      </Box>
    </>
  );
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timeline" />} stale={stale}>
      <ChartFrame
        image={[]}
        notes={[
          data.spans.length < data.total && `The latest ${count(data.spans.length)} of ${count(data.total)} attempts.`,
          rows.isByHost && "A row is a host, because the experiment used too many slots for a row each.",
          share !== null && `Trials of this experiment held these slots for ${percent(share)} of the time between its first and its last attempt.`,
          "The frame of a bar begins when the trial got the slots, its filling when its ranks started.",
        ]}
        table={() => <Spans spans={data.spans} />}
        title="Trials on their slots"
      >
        <SlotTimelineChart describe={describe} looks={ATTEMPT_LOOKS} label={`Timeline of ${count(data.spans.length)} attempts on their slots. The table has the same attempts.`} onPick={({ trial_id }) => void navigate(paths.trial(trial_id))} rows={rows} />
      </ChartFrame>
    </Stale>
  );
};
