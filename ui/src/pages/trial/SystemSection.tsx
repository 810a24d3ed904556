import { Grid, Heading, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import { withQuery } from "../../api/client";
import { type TelemetrySeries } from "../../api/trial";
import { CurvePanel } from "../../charts/CurvePanel";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Stale } from "../../components/Stale";
import { LIVE_MS, useData } from "../../hooks/useData";
import { systemCharts } from "./series";

interface Props {
  trialId: number;
  slots: number;
  isLive: boolean;
  life: readonly [number, number] | null;
}

/** Period for gangs of many slots, in milliseconds. Their answers are large. */
const MANY_MS = 5_000;
const MANY_SLOTS = 8;

/** System metrics of the hosts and GPUs of a trial, one chart per metric. */
export const SystemSection = ({ trialId, slots, isLive, life }: Props) => {
  const isLarge = slots > MANY_SLOTS;
  const path = withQuery(`trials/${trialId}/telemetry`, { max_points: isLarge ? 300 : 800 });
  const { data, error, loading, stale, refresh } = useData<{ series: TelemetrySeries[] }>(path, { everyMs: isLive ? (isLarge ? MANY_MS : LIVE_MS) : null });
  const charts = useMemo(() => systemCharts(data?.series ?? []), [data]);
  return (
    <>
      <Heading size="md">Hosts and GPUs</Heading>
      {loading ? <Loading /> : null}
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="System metrics" />}
      {data !== undefined && charts.length === 0 ? (
        <EmptyState text="Hosts measure each second from the start of the ranks. Metrics older than the retention are removed." title="There are no system metrics of this trial." />
      ) : null}
      {charts.length === 0 ? null : (
        <Stale stale={stale}>
          <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", xl: "minmax(0, 1fr) minmax(0, 1fr)" }}>
            {charts.map(({ metric, title, kind, curves }) => (
              <CurvePanel
                axis="clock"
                curves={curves}
                fromZero
                height={170}
                legend={curves.length > 1}
                id={`system ${metric}`}
                key={metric}
                range={life}
                title={title}
                xKind="clock"
                xName="time"
                yKind={kind}
              />
            ))}
          </Grid>
          <Text srOnly>{charts.length} charts of system metrics.</Text>
        </Stale>
      )}
    </>
  );
};
