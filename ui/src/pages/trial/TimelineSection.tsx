import { Badge, Box, HStack, Table, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { type TimelineEntry } from "../../api/trial";
import { ChartFrame } from "../../charts/ChartFrame";
import { TimelineChart } from "../../charts/TimelineChart";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { FilterSelect } from "../../components/FilterSelect";
import { Loading } from "../../components/Loading";
import { Stale } from "../../components/Stale";
import { Time } from "../../components/Time";
import { duration, instant } from "../../format/times";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useNow } from "../../hooks/useNow";

const STEP_MS = 5_000;

/** Rows of the list. */
const MOST = 300;

const detailText = (detail: TimelineEntry["detail"]): string => {
  if (detail === null) return "";
  if (typeof detail === "string") return detail;
  return Object.entries(detail)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name} ${String(value)}`)
    .join(", ");
};

const lasted = ({ at, until }: TimelineEntry): string => {
  const [from, to] = [instant(at), instant(until)];
  return from === null || to === null || to <= from ? "" : duration((to - from) / 1000);
};

const List = ({ entries }: { entries: readonly TimelineEntry[] }) => {
  const [kinds, setKinds] = useState<readonly string[]>([]);
  const known = useMemo(() => [...new Set(entries.map(({ kind }) => kind))], [entries]);
  const shown = useMemo(() => entries.filter(({ kind }) => kinds.length === 0 || kinds.includes(kind)).slice(-MOST), [entries, kinds]);
  return (
    <Box mt={3}>
      <HStack mb={1}>
        <FilterSelect all="All kinds" label="Filter by kind" onChange={setKinds} options={known} value={kinds} />
        <Text color="fg.muted" fontSize="sm">
          {shown.length} of {entries.length} entries
        </Text>
      </HStack>
      <Box aria-label="Entries of the timeline" maxH="26rem" overflow="auto" role="region" tabIndex={0}>
        <Table.Root size="sm" stickyHeader>
          <Table.Header>
            <Table.Row>
              {["Time", "Kind", "Attempt", "Host", "Text", "Lasted"].map((name) => (
                <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {shown.map((entry, index) => (
              <Table.Row key={`${entry.at} ${entry.kind} ${index}`}>
                <Table.Cell>
                  <Time at={entry.at} />
                </Table.Cell>
                <Table.Cell>
                  <Badge variant="subtle">{entry.kind}</Badge>
                </Table.Cell>
                <Table.Cell>{entry.attempt ?? ""}</Table.Cell>
                <Table.Cell overflowWrap="anywhere">{entry.host ?? ""}</Table.Cell>
                <Table.Cell overflowWrap="anywhere" title={detailText(entry.detail)}>
                  {entry.text}
                </Table.Cell>
                <Table.Cell whiteSpace="nowrap">{lasted(entry)}</Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
    </Box>
  );
};

/** Events of a trial by attempt and host. */
export const TimelineSection = ({ trialId, isLive }: { trialId: number; isLive: boolean }) => {
  const { data, error, loading, stale, refresh } = useData<{ entries: TimelineEntry[] }>(`trials/${trialId}/timeline`, { everyMs: isLive ? LIVE_MS : null });
  // The end of a living trial moves in steps of some seconds, because each step lays out all rows again.
  const nowS = useNow(STEP_MS) / 1000;
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timeline" />;
  if (data.entries.length === 0) return <EmptyState title="Nothing has happened to this trial yet." />;
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timeline" />} stale={stale}>
      <ChartFrame image={[]} title="Timeline">
        <TimelineChart active={isLive} axis="clock" entries={data.entries} id="timeline" nowS={isLive ? nowS : 0} range={null} />
        <List entries={data.entries} />
      </ChartFrame>
    </Stale>
  );
};
