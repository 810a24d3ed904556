import { Box, Button, Flex, HStack, Spacer, Stack, Table, Text } from "@chakra-ui/react";

import { withQuery } from "../../api/client";
import { download } from "../../charts/csv";
import { COLORS } from "../../charts/palette";
import { useChartColors } from "../../charts/theme";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Icon } from "../../components/icons";
import { Loading } from "../../components/Loading";
import { Segments } from "../../components/Segments";
import { useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { visible } from "../../lib/visible";
import { hoursText, largestDay, otherWords, OWNERS, SPANS, type Stack as Part, stacks, type Usage, usageCsv } from "./usage";

const USUAL = { by: "pool", days: "14" };

const EVERY_MS = 60_000;

const HEIGHT_PX = 180;

/** A day of a month, without the year: 03-10. */
const dayText = (day: string): string => day.slice(5);

const useColor = () => {
  const { mode, muted } = useChartColors();
  return (color: number | null): string => (color === null ? muted : (COLORS[mode][color] ?? muted));
};

const Bars = ({ parts, days }: { parts: readonly Part[]; days: readonly string[] }) => {
  const colorOf = useColor();
  const most = largestDay(parts, days.length);
  const every = Math.ceil(days.length / 16);
  return (
    <Box aria-label="Slot hours by day. The table below has the numbers." role="img">
      <Flex align="flex-end" borderBottomWidth={1} borderColor="border" gap="2px" height={`${HEIGHT_PX}px`}>
        {days.map((day, index) => {
          const sum = parts.reduce((total, { hours }) => total + (hours[index] ?? 0), 0);
          return (
            <Flex direction="column-reverse" flex={1} height="100%" key={day} minW={0} title={`${day}: ${hoursText(sum)} slot hours`}>
              {parts.map(({ name, color, hours }) => (
                <Box key={name} style={{ background: colorOf(color), height: most > 0 ? `${(100 * (hours[index] ?? 0)) / most}%` : 0 }} />
              ))}
            </Flex>
          );
        })}
      </Flex>
      <Flex color="fg.muted" fontSize="xs" gap="2px">
        {days.map((day, index) => (
          <Text flex={1} key={day} minW={0} overflow="visible" textAlign="center" whiteSpace="nowrap">
            {(days.length - 1 - index) % every === 0 ? dayText(day) : ""}
          </Text>
        ))}
      </Flex>
    </Box>
  );
};

const Numbers = ({ usage: { by, days, rows } }: { usage: Usage }) => {
  const shown = days.map((day, index) => ({ day, index })).reverse();
  return (
    <Box aria-label="Slot hours" borderColor="border" borderRadius="md" borderWidth={1} maxH="45vh" overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>{OWNERS.find(({ value }) => value === by)?.text}</Table.ColumnHeader>
            <Table.ColumnHeader textAlign="end">Slot hours</Table.ColumnHeader>
            {shown.map(({ day }) => (
              <Table.ColumnHeader key={day} textAlign="end">
                {dayText(day)}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map(({ name, total, slot_hours }) => (
            <Table.Row key={name}>
              <Table.Cell color={name === "" ? "fg.muted" : undefined} maxW="22rem" minW="9rem" overflowWrap="anywhere">
                {name === "" ? otherWords(by) : visible(name)}
              </Table.Cell>
              <Table.Cell fontWeight="medium" textAlign="end">
                {hoursText(total)}
              </Table.Cell>
              {shown.map(({ day, index }) => (
                <Table.Cell color={slot_hours[index] === 0 ? "fg.muted" : undefined} key={day} textAlign="end">
                  {hoursText(slot_hours[index] ?? 0)}
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
};

/** Slot hours of the last days by pool, user or DAG: a stacked bar per day, a table, and a file. */
export const UsagePanel = ({ pools }: { pools: readonly string[] }) => {
  const [view, setView] = useUrlState(USUAL);
  const colorOf = useColor();
  const by = OWNERS.find(({ value }) => value === view.by)?.value ?? "pool";
  const days = SPANS.find(({ value }) => value === view.days)?.value ?? "14";
  // The cards of the pools choose any number of them, a report has one or all.
  const pool = pools.length === 1 ? pools[0] : undefined;
  const { data, error, loading, refresh } = useData<Usage>(withQuery("cluster/usage", { by, days, pool }), { everyMs: EVERY_MS, keepPrevious: true });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Use of the cluster" />;
  const parts = stacks(data);
  return (
    <Stack gap={3}>
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Use of the cluster" />}
      <Flex align="center" gap={3} wrap="wrap">
        <Segments label="Slot hours by" onChange={(value) => setView({ by: value })} options={OWNERS} value={by} />
        <Segments label="Days" onChange={(value) => setView({ days: value })} options={SPANS} value={days} />
        <Text color="fg.muted" fontSize="xs">
          {pool === undefined ? "" : `Pool ${pool}. `}Days in UTC, today so far. A gang counts from its grant to its release.
        </Text>
        <Spacer />
        <Button disabled={data.rows.length === 0} onClick={() => download(`slot-hours-${by}.csv`, usageCsv(data), "text/csv")} size="xs" variant="outline">
          <Icon name="download" /> CSV
        </Button>
      </Flex>
      {data.rows.length === 0 ? (
        <EmptyState title="No gang has held slots on these days." />
      ) : (
        <>
          <Bars days={data.days} parts={parts} />
          <HStack as="ul" columnGap={4} fontSize="xs" listStyleType="none" rowGap={1} wrap="wrap">
            {parts.map(({ name, color }) => (
              <HStack as="li" gap={1.5} key={name}>
                <Box aria-hidden="true" borderRadius="sm" boxSize="10px" style={{ background: colorOf(color) }} />
                <Text overflowWrap="anywhere">{visible(name)}</Text>
              </HStack>
            ))}
          </HStack>
          <Numbers usage={data} />
          {data.more > 0 ? <Text color="fg.muted" fontSize="xs">{data.more} further names are in the last row.</Text> : null}
        </>
      )}
    </Stack>
  );
};
