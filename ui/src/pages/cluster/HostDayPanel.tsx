import { Box, Button, Flex, HStack, Input, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { withQuery } from "../../api/client";
import { paths } from "../../app/paths";
import { ChartFrame } from "../../charts/ChartFrame";
import { seconds } from "../../charts/slotTimeline";
import { SlotTimelineChart } from "../../charts/SlotTimelineChart";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { Time } from "../../components/Time";
import { count, percent, plural } from "../../format/numbers";
import { duration } from "../../format/times";
import { useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { visible } from "../../lib/visible";
import { DAY_LOOKS, type DayItem, dayRows, type HostDay, type HostDays, hostPage, itemsOf, sharesOf, slotWords } from "./hostDay";

const USUAL = { day: "", host: "", page: 1 };

/** Each answer paints all bars again. */
const EVERY_MS = 30_000;
/** Hosts of one chart. */
const HOSTS = 12;
/** Rows of the table. */
const MOST = 500;
const ROW_PX = 7;

const isDay = (text: string): boolean => /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(Date.parse(text));

const lasted = ({ from, until }: DayItem, end: string): string => {
  const [first, last] = [seconds(from), seconds(until ?? end)];
  return first === null || last === null ? "" : duration(Math.max(0, last - first));
};

const Text_ = ({ item: { text, trialId } }: { item: DayItem }) => (trialId === null ? <>{text}</> : <PageLink to={paths.trial(trialId)}>{text}</PageLink>);

const Items = ({ items, end }: { items: readonly DayItem[]; end: string }) => (
  <Box aria-label="What the hosts did" maxH="30rem" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          {["Host", "What", "Slots", "From", "Until", "Duration"].map((name) => (
            <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {items.slice(-MOST).map((item, index) => (
          <Table.Row key={index}>
            <Table.Cell>{visible(item.host)}</Table.Cell>
            <Table.Cell maxW="26rem" minW="10rem" overflowWrap="anywhere">
              <Text_ item={item} />
            </Table.Cell>
            <Table.Cell>{slotWords(item)}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">
              <Time at={item.from} />
            </Table.Cell>
            <Table.Cell whiteSpace="nowrap">{item.until === null ? "now" : <Time at={item.until} />}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">{item.isMoment ? "" : lasted(item, end)}</Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

const Shares = ({ hosts, onOpen }: { hosts: readonly HostDay[]; onOpen: (name: string) => void }) => (
  <Box aria-label="Time of the slots by host" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm">
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader>Host</Table.ColumnHeader>
          {["Held", "Idle", "Not available"].map((name) => (
            <Table.ColumnHeader key={name} textAlign="end">
              {name}
            </Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {hosts.map((host) => {
          const shares = sharesOf(host);
          return (
            <Table.Row key={host.name}>
              <Table.Cell overflowWrap="anywhere">
                <Button height="auto" onClick={() => onOpen(host.name)} p={0} size="sm" title={`Slots of ${visible(host.name)}`} variant="plain" whiteSpace="normal">
                  <span className="dtrain-link">{visible(host.name)}</span>
                </Button>
              </Table.Cell>
              {(["held", "idle", "away"] as const).map((part) => (
                <Table.Cell key={part} textAlign="end">
                  {shares === null ? "" : percent(shares[part])}
                </Table.Cell>
              ))}
            </Table.Row>
          );
        })}
      </Table.Body>
    </Table.Root>
  </Box>
);

const Controls = ({ day, host, onChange }: { day: string; host: string; onChange: (change: Partial<typeof USUAL>) => void }) => (
  <Flex align="center" columnGap={3} mb={2} rowGap={1} wrap="wrap">
    {host === "" ? null : (
      <Button onClick={() => onChange({ host: "" })} size="xs" variant="outline">
        All hosts
      </Button>
    )}
    <Button aria-pressed={day === ""} onClick={() => onChange({ day: "" })} size="xs" variant={day === "" ? "subtle" : "outline"}>
      Last 24 hours
    </Button>
    <HStack gap={1}>
      <Text fontSize="sm">or day in UTC</Text>
      <Input aria-label="Day in UTC" max={new Date().toISOString().slice(0, 10)} onChange={({ target }) => onChange({ day: target.value })} size="xs" type="date" value={day} width="10rem" />
    </HStack>
  </Flex>
);

/** What hosts did on a day: a strip per host, or a row per slot of one host, and both as tables. */
export const HostDayPanel = ({ hosts }: { hosts: readonly { readonly name: string }[] }) => {
  const [view, setView] = useUrlState(USUAL);
  const navigate = useNavigate();
  const day = isDay(view.day) ? view.day : "";
  const { shown, page, pages } = hostPage(hosts, view.page, HOSTS);
  const isWhole = view.host !== "";
  const names = isWhole ? [view.host] : shown.map(({ name }) => name);
  const path = names.length === 0 ? null : withQuery("cluster/day", { host: names, ...(day === "" ? {} : { day }) });
  const { data, error, loading, refresh } = useData<HostDays>(path, { everyMs: EVERY_MS, keepPrevious: true });
  const rows = useMemo(() => (data === undefined ? null : dayRows(data, isWhole)), [data, isWhole]);
  const range = useMemo((): [number, number] | null => (data === undefined ? null : [seconds(data.since) ?? 0, seconds(data.until) ?? 1]), [data]);
  const controls = <Controls day={day} host={view.host} onChange={(change) => setView({ page: 1, ...change }, "add")} />;
  if (path === null) return <EmptyState title="No host matches the filters." />;
  if (loading) return <Loading lines={6} />;
  if (data === undefined || rows === null) {
    return (
      <>
        {controls}
        {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Day of the hosts" />}
      </>
    );
  }
  const items = data.hosts.flatMap(itemsOf).sort((a, b) => a.from.localeCompare(b.from));
  const describe = (item: DayItem) => (
    <>
      <Box fontWeight="bold">{item.text}</Box>
      <Box>{[visible(item.host), slotWords(item)].filter(Boolean).join(", ")}</Box>
      <Box color="fg.muted">
        <Time at={item.from} />
        {item.isMoment ? "" : `, for ${lasted(item, data.until)}`}
      </Box>
    </>
  );
  const open = (host: string) => setView({ host }, "add");
  return (
    <Stack gap={3}>
      {controls}
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Day of the hosts" />}
      <ChartFrame
        image={[]}
        notes={[
          data.is_cut && "More happened than is shown: the axis begins later than the day.",
          items.length > MOST && `The table has the latest ${count(MOST)} of ${count(items.length)} entries.`,
          "The upper row of a host has its states and checks, the rows below it its slots. Gaps are idle time. A frame begins with the grant, its filling with the ranks.",
        ]}
        table={() => <Items end={data.until} items={items} />}
        title={isWhole ? `Day of ${visible(view.host)}` : `Day of ${plural(data.hosts.length, "host")}`}
      >
        <SlotTimelineChart
          describe={describe}
          label={`Day of ${plural(data.hosts.length, "host")} with ${plural(items.length, "entry", "entries")}. The table has the same.`}
          looks={DAY_LOOKS}
          onPick={({ trialId, host }) => (trialId === null ? open(host) : void navigate(paths.trial(trialId)))}
          range={range}
          rows={rows}
          {...(isWhole ? {} : { rowPx: ROW_PX })}
        />
      </ChartFrame>
      <Shares hosts={data.hosts} onOpen={open} />
      {isWhole || pages === 1 ? null : (
        <HStack gap={2}>
          <Button disabled={page === 1} onClick={() => setView({ page: page - 1 }, "add")} size="xs" variant="outline">
            Previous hosts
          </Button>
          <Text fontSize="sm">
            Page {page} of {pages}
          </Text>
          <Button disabled={page === pages} onClick={() => setView({ page: page + 1 }, "add")} size="xs" variant="outline">
            Next hosts
          </Button>
        </HStack>
      )}
    </Stack>
  );
};
