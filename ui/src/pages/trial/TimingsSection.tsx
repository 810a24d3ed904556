import { Box, Grid, HStack, Table } from "@chakra-ui/react";
import { useMemo } from "react";

import { type Timings } from "../../api/trial";
import { ChartFrame } from "../../charts/ChartFrame";
import { csv, download } from "../../charts/csv";
import { LineChart } from "../../charts/LineChart";
import { Swatch } from "../../charts/Swatch";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Stale } from "../../components/Stale";
import { count, percent } from "../../format/numbers";
import { duration } from "../../format/times";
import { LIVE_MS, useData } from "../../hooks/useData";
import { timingCurves } from "./series";

interface Props {
  trialId: number;
  isLive: boolean;
  life: readonly [number, number] | null;
}

const Totals = ({ timings, looks }: { timings: Timings; looks: ReadonlyMap<string, { color: number; dash: number }> }) => {
  const whole = timings.totals.reduce((sum, { total_s }) => sum + total_s, 0);
  return (
    <Box aria-label="Totals of timed sections" maxH="260px" overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Section</Table.ColumnHeader>
            {["Share", "Total", "Mean", "Longest", "Count"].map((name) => (
              <Table.ColumnHeader key={name} textAlign="end">
                {name}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {timings.totals.map(({ name, total_s, mean_s, max_s, count: times }) => {
            const look = looks.get(name);
            return (
              <Table.Row key={name}>
                <Table.Cell overflowWrap="anywhere">
                  <HStack gap={2}>
                    {look === undefined ? null : <Swatch look={look} />} {name}
                  </HStack>
                </Table.Cell>
                <Table.Cell textAlign="end">{whole > 0 ? percent(total_s / whole, 1) : ""}</Table.Cell>
                <Table.Cell textAlign="end">{duration(total_s)}</Table.Cell>
                <Table.Cell textAlign="end">{duration(mean_s)}</Table.Cell>
                <Table.Cell textAlign="end">{duration(max_s)}</Table.Cell>
                <Table.Cell textAlign="end">{count(times)}</Table.Cell>
              </Table.Row>
            );
          })}
        </Table.Body>
      </Table.Root>
    </Box>
  );
};

/** Timed sections of the training program: their shares over time, and their totals. */
export const TimingsSection = ({ trialId, isLive, life }: Props) => {
  const { data, error, loading, stale, refresh } = useData<Timings>(`trials/${trialId}/timings`, { everyMs: isLive ? LIVE_MS : null });
  const curves = useMemo(() => (data === undefined ? [] : timingCurves(data)), [data]);
  const looks = useMemo(() => new Map(curves.map(({ id, look }) => [id, look])), [curves]);
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timings" />;
  const save = () =>
    download(`timings of trial ${trialId}.csv`, csv([["at_s", ...data.names], ...data.at_s.map((at, index) => [at, ...data.names.map((name) => data.share[name]?.[index])])]));
  return (
    <Stale stale={stale}>
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timings" />}
      <ChartFrame onDownload={data.at_s.length > 0 ? save : undefined} title="Timed sections, as shares of the time">
        {data.totals.length === 0 ? (
          <EmptyState text="The library's training loop measures loading, computation and communication; `ctx.timed` adds sections." title="The trial has no timings." />
        ) : (
          <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", xl: "minmax(0, 1.2fr) minmax(0, 1fr)" }}>
            <LineChart axis="clock" curves={curves} fromZero height={240} id="timings" label="Shares of timed sections over time, on top of each other" range={life} xKind="clock" yKind="share" />
            <Totals looks={looks} timings={data} />
          </Grid>
        )}
      </ChartFrame>
    </Stale>
  );
};
