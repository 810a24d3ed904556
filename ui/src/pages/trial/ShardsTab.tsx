import { Box, Heading, HStack, Stack, Table, Text } from "@chakra-ui/react";
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
import { count } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useIsNarrow } from "../../hooks/useIsNarrow";
import { visible } from "../../lib/visible";
import { ResultsPreview } from "./ResultsPreview";
import { SHARD_STATES, shardCells, type ShardState, shardWords } from "./shardCells";
import { ENDED } from "./words";

/** Cells of the grid: each is an element, and a poll compares all of them. A phone shows them on less than a screen. */
const MOST_CELLS = 2000;
const MOST_CELLS_NARROW = 400;

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

/** Numbers of shards by state. Those of a run that has ended are final, and it leaves out what there is none of. */
const Legend = ({ isLive, shards }: { isLive: boolean; shards: Shards }) => (
  <HStack aria-label="Legend of the shards" as="ul" color="fg.muted" columnGap={4} fontSize="xs" listStyleType="none" rowGap={1} wrap="wrap">
    {SHARD_STATES.filter(({ state }) => isLive || state === "done" || shards[state] > 0).map(({ state, words }) => (
      <HStack as="li" gap={1.5} key={state}>
        <Square state={state} />
        <Text>
          {count(shards[state])} {words}
          {isLive && state === "failed" ? ", tried again" : ""}
        </Text>
      </HStack>
    ))}
  </HStack>
);

const Grid = ({ shards }: { shards: Shards }) => {
  const most = useIsNarrow() ? MOST_CELLS_NARROW : MOST_CELLS;
  const cells = useMemo(() => shardCells(shards.states, most), [shards.states, most]);
  if (shards.states === "") return <Text color="fg.muted">The input has too many shards for a grid.</Text>;
  return (
    <Box aria-label={shardWords(shards)} className="dtrain-shards" role="img">
      {cells.map(({ from, state, title }) => (
        <Square key={from} state={state} title={title} />
      ))}
    </Box>
  );
};

const TroubleState = ({ failures, state }: ShardTrouble) => (
  <>
    <StateBadge small state={LIKE[state]}>
      {state === "skipped" ? "set aside" : state}
    </StateBadge>
    {failures > 1 ? (
      <Text as="span" color="fg.muted" fontSize="xs" ms={1.5} whiteSpace="nowrap">
        {failures} times
      </Text>
    ) : null}
  </>
);

const Trouble = ({ isNarrow, one }: { isNarrow: boolean; one: ShardTrouble }) => {
  const error = (
    <Table.Cell overflowWrap="anywhere" verticalAlign="top" whiteSpace="pre-wrap">
      {visible(one.error)}
    </Table.Cell>
  );
  if (isNarrow)
    return (
      <Table.Row>
        <Table.Cell overflowWrap="anywhere" verticalAlign="top">
          <TroubleState {...one} />
          <Text mt={1}>{one.shard}</Text>
          <Text color="fg.muted" fontSize="xs">
            {visible(one.label)}
          </Text>
        </Table.Cell>
        {error}
      </Table.Row>
    );
  return (
    <Table.Row>
      <Table.Cell verticalAlign="top">{one.shard}</Table.Cell>
      <Table.Cell overflowWrap="anywhere" verticalAlign="top">
        {visible(one.label)}
      </Table.Cell>
      <Table.Cell verticalAlign="top" whiteSpace="nowrap">
        <TroubleState {...one} />
      </Table.Cell>
      {error}
    </Table.Row>
  );
};

const Troubles = ({ rows }: { rows: readonly ShardTrouble[] }) => {
  const isNarrow = useIsNarrow();
  return (
    <Box>
      <Heading as="h2" mb={1} size="sm">
        Shards that failed
      </Heading>
      <Box aria-label="Shards that failed" maxH="22rem" overflow="auto" role="region" tabIndex={0}>
        <Table.Root size="sm" stickyHeader>
          <Table.Header>
            <Table.Row>
              {(isNarrow ? ["Shard", "Error"] : ["Shard", "Rows", "State", "Error"]).map((name) => (
                <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {rows.map((one) => (
              <Trouble isNarrow={isNarrow} key={one.shard} one={one} />
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
    </Box>
  );
};

/** Numbers that the head of the page lacks: it has the progress of a trial that runs. */
const Progress = ({ shards, trial }: { shards: Shards; trial: Trial }) => (
  <Facts
    facts={[
      trial.progress === null && shards.total > 0 && { label: "Done", value: <ProgressBar share={shards.share} /> },
      shards.rows_bad > 0 && { label: "Bad rows", value: `${count(shards.rows_bad)} ${BAD_ROWS[shards.on_bad_row]}` },
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
        <Progress shards={data} trial={trial} />
        {data.total === 0 ? (
          <EmptyState text="Rank 0 counts the shards of the input when the gang is started." title="There are no shards yet." />
        ) : (
          <>
            <Legend isLive={everyMs !== null} shards={data} />
            <Grid shards={data} />
          </>
        )}
        {data.troubles.length === 0 ? null : <Troubles rows={data.troubles} />}
        <ResultsPreview isLive={everyMs !== null} shards={data} trialId={trial.trial_id} />
      </Stack>
    </Stale>
  );
};
