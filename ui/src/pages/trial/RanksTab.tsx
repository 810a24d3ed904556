import { Box, Button, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link, useLocation } from "react-router-dom";

import { withQuery } from "../../api/client";
import { type RankRow, type Trial } from "../../api/trial";
import { CopyButton } from "../../components/CopyButton";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { LogText } from "../../components/LogText";
import { Stale } from "../../components/Stale";
import { Time } from "../../components/Time";
import { bytes } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { AttemptPicker } from "./AttemptPicker";
import { ENDED, exitWords, plainLog } from "./words";

const COLUMNS = ["Rank", "Host", "Slot", "Process", "Exit code", "Ended", "Error", "Log"];

const Log = ({ row }: { row: RankRow }) => {
  const text = plainLog(row.log_tail);
  return (
    <Box>
      <HStack mb={1}>
        <Text color="fg.muted" flex="1" fontSize="xs">
          Last {bytes(row.log_tail.length)} of the log of rank {row.rank}
        </Text>
        <CopyButton label={`Copy the log of rank ${row.rank}`} text={text} />
      </HStack>
      <LogText label={`Log of rank ${row.rank}`} text={text} />
    </Box>
  );
};

const Row = ({ row, attempt }: { row: RankRow; attempt: number }) => {
  // The tab of a task instance has the trial that it shows in its address.
  const trial = new URLSearchParams(useLocation().search).get("trial");
  const [isOpen, setOpen] = useState(false);
  const isFailed = row.exit_code !== null && row.exit_code !== 0 && !row.sent_signal;
  return (
    <>
      <Table.Row data-failed={isFailed || undefined}>
        <Table.Cell>{row.rank}</Table.Cell>
        <Table.Cell overflowWrap="anywhere">{row.host}</Table.Cell>
        <Table.Cell>{row.slot ?? ""}</Table.Cell>
        <Table.Cell>{row.pid ?? ""}</Table.Cell>
        <Table.Cell color={isFailed ? "red.fg" : undefined} fontWeight={isFailed ? "bold" : undefined}>
          {exitWords(row.exit_code, row.sent_signal)}
        </Table.Cell>
        <Table.Cell>
          <Time at={row.exited_at} />
        </Table.Cell>
        <Table.Cell overflowWrap="anywhere" whiteSpace="pre-wrap">
          {row.error?.split("\n").at(-1) ?? ""}
        </Table.Cell>
        <Table.Cell>
          <HStack gap={2}>
            <Link className="dtrain-link" to={withQuery("", { trial, tab: "log", ranks: row.rank, attempt })}>
              Log
            </Link>
            {row.log_tail === "" ? (
              <Text color="fg.muted">empty</Text>
            ) : (
              <Button aria-expanded={isOpen} onClick={() => setOpen(!isOpen)} size="xs" variant="outline">
                {isOpen ? "Hide its end" : "Show its end"}
              </Button>
            )}
          </HStack>
        </Table.Cell>
      </Table.Row>
      {isOpen ? (
        <Table.Row>
          <Table.Cell colSpan={COLUMNS.length}>
            <Log row={row} />
          </Table.Cell>
        </Table.Row>
      ) : null}
    </>
  );
};

/** Processes of an attempt, with their exit codes and the ends of their logs. */
export const RanksTab = ({ trial }: { trial: Trial }) => {
  const [attempt, setAttempt] = useState<number | null>(null);
  const path = withQuery(`trials/${trial.trial_id}/ranks`, { attempt, logs: true });
  const { data, error, loading, stale, refresh } = useData<{ attempt: number; rows: RankRow[] }>(path, { everyMs: ENDED.has(trial.state) ? null : 2 * LIVE_MS, keepPrevious: true });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Ranks" />;
  return (
    <Stale stale={stale}>
      <Stack gap={2}>
        {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Ranks" />}
        <AttemptPicker attempts={trial.attempts_list.length} onChange={setAttempt} value={attempt ?? data.attempt} />
        {data.rows.length === 0 ? (
          <EmptyState text="Ranks appear when the gang is granted and its processes are started." title="The attempt has no ranks yet." />
        ) : (
          <Box overflowX="auto">
            <Table.Root size="sm">
              <Table.Header>
                <Table.Row>
                  {COLUMNS.map((name) => (
                    <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
                  ))}
                </Table.Row>
              </Table.Header>
              <Table.Body>
                {data.rows.map((row) => (
                  <Row attempt={data.attempt} key={row.rank} row={row} />
                ))}
              </Table.Body>
            </Table.Root>
          </Box>
        )}
      </Stack>
    </Stale>
  );
};
