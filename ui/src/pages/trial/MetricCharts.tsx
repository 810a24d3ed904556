import { Grid } from "@chakra-ui/react";
import { useMemo } from "react";

import { withQuery } from "../../api/client";
import { type Group } from "../../api/charts";
import { type MetricSeries, type TrialCurves } from "../../api/trial";
import { type CurveView } from "../../charts/CurveOptions";
import { CurvePanel } from "../../charts/CurvePanel";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Stale } from "../../components/Stale";
import { plural } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { metricCurves, type XAxis } from "./series";

interface Props {
  trialId: number;
  /** Only this group; null for training and validation together. */
  group?: Group | null;
  names: readonly string[];
  x: XAxis;
  view: CurveView;
  isLive: boolean;
  life: readonly [number, number] | null;
}

interface OneProps extends Omit<Props, "group" | "isLive" | "names" | "trialId"> {
  name: string;
  series: readonly MetricSeries[];
}

const One = ({ name, series, x, view, life }: OneProps) => {
  const curves = useMemo(() => metricCurves(series, name, x, view.smooth), [series, name, x, view.smooth]);
  const gaps = useMemo(() => series.filter((item) => item.name === name).reduce((sum, { y }) => sum + y.filter((value) => value === null).length, 0), [series, name]);
  const isBackwards = x === "clock" && series.some((item) => item.name === name && item.at_s.some((at, index) => at < (item.at_s[index - 1] ?? at)));
  return (
    <CurvePanel
      axis={x}
      curves={curves}
      height={220}
      legend
      id={`metric ${name}`}
      notes={[
        gaps > 0 && `${plural(gaps, "value")} NaN or infinite: the curve has gaps there.`,
        series.some((item) => item.name === name && item.sampled) && "The trial has more reports than were read: extreme values between the points may be missing.",
        isBackwards && "The clock of the host ran backwards: the points are in the order of time.",
        x === "epochs" && curves.every(({ points }) => points.xs.length === 0) && "The reports have no epoch.",
      ]}
      range={x === "clock" ? life : null}
      robust={view.robust}
      title={name}
      xKind={x === "clock" ? "clock" : "number"}
      xName={x === "clock" ? "time" : x}
      yLog={view.logy}
    />
  );
};

/** One chart per metric, with training and validation in it. */
export const MetricCharts = ({ trialId, group = null, names, isLive, ...rest }: Props) => {
  const path = withQuery(`trials/${trialId}/curves`, { metric: names, group, max_points: 2_000 });
  const { data, error, loading, stale, refresh } = useData<TrialCurves>(path, { everyMs: isLive ? LIVE_MS : null, keepPrevious: true });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Curves" />;
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Curves" />} stale={stale}>
      <Grid gap={3} gridTemplateColumns={names.length === 1 ? "minmax(0, 1fr)" : { base: "minmax(0, 1fr)", xl: "minmax(0, 1fr) minmax(0, 1fr)" }}>
        {names.map((name) => (
          <One {...rest} key={name} name={name} series={data.series} />
        ))}
      </Grid>
    </Stale>
  );
};
