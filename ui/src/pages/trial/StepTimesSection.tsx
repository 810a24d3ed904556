import { Box, Table } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { withQuery } from "../../api/client";
import { type StepTimes } from "../../api/trial";
import { ChartFrame } from "../../charts/ChartFrame";
import { HeatStrip } from "../../charts/HeatStrip";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Notice } from "../../components/Notice";
import { Stale } from "../../components/Stale";
import { NONE } from "../../format/numbers";
import { duration } from "../../format/times";
import { SLOW_MS, useData } from "../../hooks/useData";
import { AttemptPicker } from "./AttemptPicker";

interface Props {
  trialId: number;
  attempts: number;
  isLive: boolean;
  life: readonly [number, number] | null;
}

const RankTable = ({ data }: { data: StepTimes }) => (
  <Box aria-label="Step time by rank" maxH="24rem" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          {["Rank", "Host", "Slot", "Relative to the other ranks", ""].map((name) => (
            <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {data.ranks.map(({ rank, host, slot, ratio }) => {
          const slow = data.slow_ranks.find((item) => item.rank === rank);
          return (
            <Table.Row key={rank}>
              <Table.Cell>{rank}</Table.Cell>
              <Table.Cell>{host}</Table.Cell>
              <Table.Cell>{slot ?? ""}</Table.Cell>
              <Table.Cell>{ratio === null ? NONE : `${ratio.toFixed(2)} times`}</Table.Cell>
              <Table.Cell color="red.fg">{slow === undefined ? "" : "slow"}</Table.Cell>
            </Table.Row>
          );
        })}
      </Table.Body>
    </Table.Root>
  </Box>
);

/** Return the path of the step times of a trial. */
export const stepTimesPath = (trialId: number | string, attempt: number | null): string => withQuery(`trials/${trialId}/step_times`, { attempt, buckets: 200 });

/** Step time of each rank, in which a slow rank is visible. */
export const StepTimesSection = ({ trialId, attempts, isLive, life }: Props) => {
  const [attempt, setAttempt] = useState<number | null>(null);
  const path = stepTimesPath(trialId, attempt);
  const { data, error, loading, stale, refresh } = useData<StepTimes>(path, { everyMs: isLive ? SLOW_MS : null, keepPrevious: true });
  // The strip has the time of its attempt, unless it is the only one: then it has the time of all charts.
  const range = useMemo(() => (attempts <= 1 ? life : null), [attempts, life]);
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Step times" />;
  const slow = data.slow_ranks.map(({ rank, host, ratio }) => `rank ${rank} on ${host} (${ratio.toFixed(2)} times the others)`);
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Step times" />} stale={stale}>
      <ChartFrame
        controls={<AttemptPicker attempts={attempts} onChange={setAttempt} value={attempt ?? data.attempt} />}
        table={data.ranks.length === 0 ? undefined : () => <RankTable data={data} />}
        image={data.ranks.length === 0 ? undefined : []}
        notes={["The time that a rank needs for a step, without its wait for other ranks."]}
        title={`Step time by rank${data.median_s === null ? "" : `, median ${duration(data.median_s)}`}`}
      >
        {slow.length === 0 ? null : <Notice status="warning" title={`Slow: ${slow.slice(0, 4).join(", ")}${slow.length > 4 ? ` and ${slow.length - 4} more` : ""}.`} />}
        {data.at_s.length === 0 || data.ranks.length === 0 ? (
          <EmptyState text="The library measures the steps of each rank while a training program uses its steps." title="The attempt has no step times." />
        ) : (
          <HeatStrip axis="clock" id="step times" range={range} strip={data} />
        )}
      </ChartFrame>
    </Stale>
  );
};
