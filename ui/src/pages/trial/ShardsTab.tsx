import { Box, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import { type Shards, type ShardTrouble, type Trial } from "../../api/trial";
import { type Fill } from "../../charts/palette";
import { CopyButton } from "../../components/CopyButton";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Facts } from "../../components/Facts";
import { Loading } from "../../components/Loading";
import { ProgressBar } from "../../components/ProgressBar";
import { Stale } from "../../components/Stale";
import { StateBadge } from "../../components/StateBadge";
import { count, NONE } from "../../format/numbers";
import { duration } from "../../format/times";
import { LIVE_MS, useData } from "../../hooks/useData";
import { ResultsPreview } from "./ResultsPreview";
import { SHARD_STATES, shardCells, type ShardState, shardWords } from "./shardCells";
import { ENDED } from "./words";

/** Cells of the grid. Each is an element, and a poll compares all of them. */
const MOST_CELLS = 2000;

/** State of a shard -> state whose badge it has. */
const LIKE: Record<ShardState, string> = { done: "completed", running: "running", waiting: "waiting", failed: "failed", skipped: "stopped" };

/** What happens to bad rows. */
const BAD_ROWS: Record<Shards["on_bad_row"], string> = { fail: "", skip: "left out", mark: "marked in the column error" };

/** State of a shard -> colour of its square. */
const FILL_OF: Record<ShardState, Fill> = { done: "done", running: "running", waiting: "waiting", failed: "failed", skipped: "foreign" };

const colour = (state: ShardState): string => `var(--dtrain-fill-${FILL_OF[state]})`;

const Square = ({ state, title }: { state: ShardState; title?: string }) => (
  <i aria-hidden className="dtrain-shard" data-state={state} style={{ background: colour(state) }} title={title} />
);

const Legend = ({ shards }: { shards: Shards }) => (
  <HStack aria-label="Legend of the shards" as="ul" color="fg.muted" fontSize="xs" gap={4} listStyleType="none" wrap="wrap">
    {SHARD_STATES.map(({ state, words }) => (
      <HStack as="li" gap={1.5} key={state}>
        <Square state={state} />
        <Text>
          {count(shards[state])} {words}
        </Text>
      </HStack>
    ))}
  </HStack>
);

const Grid = ({ shards }: { shards: Shards }) => {
  const cells = useMemo(() => shardCells(shards.states, MOST_CELLS), [shards.states]);
  if (shards.states === "") return <Text color="fg.muted">The input has too many shards for a grid.</Text>;
  return (
    <Box aria-label={shardWords(shards)} className="dtrain-shards" role="img">
      {cells.map(({ from, state, title }) => (
        <Square key={from} state={state} title={title} />
      ))}
    </Box>
  );
};

const Troubles = ({ rows }: { rows: readonly ShardTrouble[] }) => (
  <Box aria-label="Failures of shards" maxH="26rem" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          {["Shard", "Rows", "State", "Error"].map((name) => (
            <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {rows.map(({ shard, label, state, error }, index) => (
          <Table.Row key={`${shard} ${state} ${index}`}>
            <Table.Cell>{shard}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">{label}</Table.Cell>
            <Table.Cell>
              <StateBadge small state={LIKE[state]}>
                {state === "skipped" ? "set aside" : state}
              </StateBadge>
            </Table.Cell>
            <Table.Cell overflowWrap="anywhere" whiteSpace="pre-wrap">
              {error}
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

const Progress = ({ shards }: { shards: Shards }) => (
  <Facts
    facts={[
      { label: "Done", value: <ProgressBar share={shards.share} /> },
      shards.rows_bad > 0 && { label: "Bad rows", value: `${count(shards.rows_bad)} ${BAD_ROWS[shards.on_bad_row]}` },
      { label: "Time left", value: shards.eta_s === null ? NONE : duration(shards.eta_s) },
      {
        label: "Results",
        value: (
          <HStack gap={1}>
            <Text overflow="hidden" textOverflow="ellipsis" title={shards.location} whiteSpace="nowrap">
              {shards.location}
            </Text>
            <CopyButton label="Copy the location of the results" text={shards.location} />
          </HStack>
        ),
        wide: true,
      },
    ]}
  />
);

/** Shards of a batch inference as a grid, with progress and failures. */
export const ShardsTab = ({ trial }: { trial: Trial }) => {
  const everyMs = ENDED.has(trial.state) ? null : LIVE_MS;
  const { data, error, loading, stale, refresh } = useData<Shards>(`trials/${trial.trial_id}/shards`, { everyMs });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Shards" />;
  return (
    <Stale stale={stale}>
      <Stack gap={3}>
        {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Shards" />}
        <Progress shards={data} />
        {data.total === 0 ? (
          <EmptyState text="Rank 0 counts the shards of the input when the gang is started." title="There are no shards yet." />
        ) : (
          <>
            <Legend shards={data} />
            <Grid shards={data} />
          </>
        )}
        <ResultsPreview isLive={everyMs !== null} shards={data} trialId={trial.trial_id} />
        {data.troubles.length === 0 ? null : <Troubles rows={data.troubles} />}
      </Stack>
    </Stale>
  );
};
