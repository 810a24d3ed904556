import { Box, Grid, HStack, Table } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { withQuery } from "../../api/client";
import { type Timings } from "../../api/trial";
import { ChartFrame } from "../../charts/ChartFrame";
import { csv, download } from "../../charts/csv";
import { LineChart } from "../../charts/LineChart";
import { Swatch } from "../../charts/Swatch";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Stale } from "../../components/Stale";
import { percent } from "../../format/numbers";
import { duration } from "../../format/times";
import { SLOW_MS, useData } from "../../hooks/useData";
import { own } from "../../lib/own";
import { AttemptPicker } from "./AttemptPicker";
import { timingCurves } from "./series";

interface Props {
  trialId: number;
  attempts: number;
  isLive: boolean;
  life: readonly [number, number] | null;
}

const Totals = ({ timings, looks }: { timings: Timings; looks: ReadonlyMap<string, { color: number; dash: number }> }) => (
    <Box aria-label="Totals of the parts of a step" maxH="260px" overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader>Part</Table.ColumnHeader>
            {["Share", "Total, mean of the ranks"].map((name) => (
              <Table.ColumnHeader key={name} textAlign="end">
                {name}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {timings.parts.map(({ name, total_s, share }) => {
            const look = looks.get(name);
            return (
              <Table.Row key={name}>
                <Table.Cell overflowWrap="anywhere">
                  <HStack gap={2}>
                    {look === undefined ? null : <Swatch look={look} />} {name}
                  </HStack>
                </Table.Cell>
                <Table.Cell textAlign="end">{percent(share, 1)}</Table.Cell>
                <Table.Cell textAlign="end">{duration(total_s)}</Table.Cell>
              </Table.Row>
            );
          })}
        </Table.Body>
      </Table.Root>
    </Box>
);

/** Return the path of the timings of a trial. */
export const timingsPath = (trialId: number | string, attempt: number | null): string => withQuery(`trials/${trialId}/timings`, { attempt });

/** Parts of the steps of an attempt: their shares over time, and their totals. */
export const TimingsSection = ({ trialId, attempts, isLive, life }: Props) => {
  const [attempt, setAttempt] = useState<number | null>(null);
  const { data, error, loading, stale, refresh } = useData<Timings>(timingsPath(trialId, attempt), { everyMs: isLive ? SLOW_MS : null, keepPrevious: true });
  const curves = useMemo(() => (data === undefined ? [] : timingCurves(data)), [data]);
  const looks = useMemo(() => new Map(curves.map(({ id, look }) => [id, look])), [curves]);
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timings" />;
  const save = () =>
    download(`timings of trial ${trialId}.csv`, csv([["at_s", ...data.names], ...data.at_s.map((at, index) => [at, ...data.names.map((name) => own(data.share, name)?.[index])])]));
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Timings" />} stale={stale}>
      <ChartFrame controls={<AttemptPicker attempts={attempts} onChange={setAttempt} value={attempt ?? data.attempt} />} image={data.parts.length > 0 ? curves : undefined} onDownload={data.at_s.length > 0 ? save : undefined} title="Parts of a step, as shares of the time">
        {data.parts.length === 0 ? (
          <EmptyState text="The library measures the parts of a step while a training program uses its loader and its steps." title="The attempt has no timings." />
        ) : (
          <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", xl: "minmax(0, 1.2fr) minmax(0, 1fr)" }}>
            <LineChart axis="clock" curves={curves} fromZero height={240} id="timings" label="Shares of the parts of a step over time, on top of each other" range={attempts <= 1 ? life : null} xKind="clock" yKind="share" />
            <Totals looks={looks} timings={data} />
          </Grid>
        )}
      </ChartFrame>
    </Stale>
  );
};
