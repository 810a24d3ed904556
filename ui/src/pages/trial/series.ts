/** From the answers of the API to the curves of a trial's charts. */
import { type MetricSeries, type TelemetrySeries, type Timings } from "../../api/trial";
import { type AxisKind } from "../../charts/axisText";
import { type Curve } from "../../charts/curves";
import { ordered, type Ordered } from "../../charts/lines";
import { lookAt, type Look } from "../../charts/palette";
import { smoothed } from "../../charts/smoothing";
import { stacked } from "../../charts/stack";
import { own } from "../../lib/own";

export type XAxis = "batches" | "clock" | "epochs";

/** Training and validation of a metric have the same colours on each chart. */
const GROUP_LOOKS: Record<string, Look> = { validation: { color: 0, dash: 0 }, training: { color: 1, dash: 0 } };

const xOf = (series: MetricSeries, x: XAxis): readonly (number | null)[] => (x === "clock" ? series.at_s : x === "epochs" ? series.epochs : series.batches);

/** Return the points of a series with a gap between two attempts, which time separates. */
export const withGaps = (series: MetricSeries, x: XAxis): Ordered => {
  const places = xOf(series, x);
  if (x !== "clock" || series.attempt.every((attempt) => attempt === series.attempt[0])) return ordered(places, series.y);
  const xs: (number | null)[] = [];
  const ys: (number | null)[] = [];
  places.forEach((place, index) => {
    const before = series.attempt[index - 1];
    if (index > 0 && before !== series.attempt[index]) {
      xs.push(place);
      ys.push(null);
    }
    xs.push(place);
    ys.push(series.y[index] ?? null);
  });
  return ordered(xs, ys);
};

/** Return the indices of the gaps between attempts, which {@link withGaps} has put before the first point of each. */
export const attemptGaps = (series: MetricSeries, { xs, ys }: Ordered): number[] => {
  const starts = new Set(series.at_s.filter((_, index) => index > 0 && series.attempt[index - 1] !== series.attempt[index]));
  return xs.flatMap((x, index) => (ys[index] === null && xs[index + 1] === x && starts.has(x) ? [index] : []));
};

/** Return the curves of one metric: validation and training. */
export const metricCurves = (series: readonly MetricSeries[], name: string, x: XAxis, smooth: number): Curve[] =>
  series
    .filter((item) => item.name === name)
    .map((item): Curve => {
      const points = withGaps(item, x);
      const isSmooth = smooth > 0;
      return {
        id: `${item.group}/${name}`,
        name: item.group,
        look: own(GROUP_LOOKS, item.group) ?? lookAt(2),
        points: isSmooth ? { xs: points.xs, ys: smoothed(points.xs, points.ys, smooth) } : points,
        raw: isSmooth ? points : null,
        joins: x === "clock" ? attemptGaps(item, points) : [],
      };
    });

/** Names of system metrics in words, in the order of the page. */
const SYSTEM_NAMES: readonly (readonly [string, string])[] = [
  ["gpu_util", "GPU utilization"],
  ["gpu_free_memory", "GPU memory, free"],
  ["cpu_util", "CPU utilization"],
  ["memory_available", "Memory, available"],
  ["net_sent", "Network, sent"],
  ["net_recv", "Network, received"],
  ["disk_read", "Disk, read"],
  ["disk_write", "Disk, written"],
  ["disk_iops", "Disk operations per second"],
  ["cpu_wait", "CPU, time that a rank waits for it"],
  ["cpu_throttled", "CPU quota used up, share of periods"],
  ["cpu_pressure", "CPU pressure"],
  ["cpu_steal", "CPU time taken by the hypervisor"],
  ["cpu_clock", "CPU clock (MHz)"],
  ["io_pressure", "Disk pressure"],
  ["net_retransmitted", "Network, TCP segments sent again"],
  ["net_errors", "Network errors per second"],
  ["gpu_clock", "GPU clock (MHz)"],
  ["gpu_temperature", "GPU temperature (°C)"],
  ["gpu_power", "GPU power (W)"],
  ["gpu_thermal_slowdown", "GPU clocks reduced by temperature"],
  ["gpu_power_slowdown", "GPU clocks reduced by the power limit"],
  ["gpu_hardware_slowdown", "GPU clocks reduced by the hardware"],
  ["gpu_ecc_errors", "GPU memory errors that were not corrected"],
  ["gpu_remapped_rows", "GPU memory rows that were remapped"],
  ["gpu_other_processes", "Processes of other runs on the GPU"],
];

/** Metrics that are zero on a healthy host. They have a chart only if they are not. */
const USUALLY_ZERO = new Set([
  "cpu_wait", "cpu_throttled", "cpu_pressure", "cpu_steal", "io_pressure", "net_retransmitted", "net_errors", "gpu_thermal_slowdown",
  "gpu_power_slowdown", "gpu_hardware_slowdown", "gpu_ecc_errors", "gpu_remapped_rows", "gpu_other_processes",
]);

const UNITS = new Map<string, AxisKind>([["%", "percent"], ["bytes", "bytes"], ["bytes/s", "bytes_per_s"]]);

/** One chart of system metrics. */
export interface SystemChart {
  readonly metric: string;
  readonly title: string;
  readonly kind: AxisKind;
  readonly curves: readonly Curve[];
}

const nameOf = ({ host, device, rank }: TelemetrySeries, slots: ReadonlyMap<string, number>): string => {
  if (rank !== null) return `rank ${rank} on ${host}`;
  if (device === null) return host;
  const slot = slots.get(`${host} ${device}`);
  return slot === undefined ? `${host}, ${device}` : `${host}, GPU ${slot}`;
};

/** Series with dashes of their own. Noise hides the dashes of many. */
const MOST_DASHED = 8;

/** Curves with a band from the smallest to the largest value. More bands hide each other. */
const BANDS = 2;

/** Return the number of each GPU among those of its host, in the order of the devices. */
const numbered = (series: readonly TelemetrySeries[]): Map<string, number> => {
  const devices = new Map<string, Set<string>>();
  for (const { host, device } of series) if (device !== null) devices.set(host, (devices.get(host) ?? new Set()).add(device));
  const pairs = [...devices].flatMap(([host, names]) => [...names].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).map((name, index) => [`${host} ${name}`, index] as const));
  return new Map(pairs);
};

const joined = (parts: readonly TelemetrySeries[]): Pick<TelemetrySeries, "at_s" | "maximum" | "mean" | "minimum"> => {
  const [at_s, mean, minimum, maximum]: [number[], (number | null)[], (number | null)[], (number | null)[]] = [[], [], [], []];
  for (const part of parts) {
    // Attempts are separated by a gap.
    if (at_s.length > 0 && part.at_s.length > 0) [at_s, mean, minimum, maximum].forEach((column, index) => column.push(index === 0 ? (part.at_s[0] ?? 0) : (null as never)));
    at_s.push(...part.at_s);
    mean.push(...part.mean);
    minimum.push(...part.minimum);
    maximum.push(...part.maximum);
  }
  return { at_s, mean, minimum, maximum };
};

/** Return one chart per system metric, with one curve per GPU or host over all attempts. */
export const systemCharts = (series: readonly TelemetrySeries[]): SystemChart[] => {
  const slots = numbered(series);
  const known = new Map(SYSTEM_NAMES);
  const metrics = [...new Set(series.filter(({ maximum, metric }) => !USUALLY_ZERO.has(metric) || maximum.some((value) => value !== null && value > 0)).map(({ metric }) => metric))];
  const place = (metric: string) => {
    const at = SYSTEM_NAMES.findIndex(([name]) => name === metric);
    return at < 0 ? SYSTEM_NAMES.length : at;
  };
  return metrics
    .sort((a, b) => place(a) - place(b) || a.localeCompare(b, "en"))
    .map((metric) => {
      const mine = series.filter((item) => item.metric === metric);
      const groups = new Map<string, TelemetrySeries[]>();
      for (const item of mine) {
        const name = nameOf(item, slots);
        groups.set(name, [...(groups.get(name) ?? []), item]);
      }
      const names = [...groups.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const curves = names.map((name, index): Curve => {
        const { at_s, mean, minimum, maximum } = joined((groups.get(name) ?? []).sort((a, b) => a.attempt - b.attempt));
        const points = ordered(at_s, mean);
        const hasBand = names.length <= BANDS && !points.sorted && points.xs.length === at_s.length;
        return { id: name, name, look: names.length > MOST_DASHED ? { ...lookAt(index), dash: 0 } : lookAt(index), points, band: hasBand ? { low: minimum, high: maximum } : null };
      });
      return { metric, title: known.get(metric) ?? metric, kind: UNITS.get(mine[0]?.unit ?? "") ?? "number", curves };
    });
};

/** Return the shares of timed sections on top of each other, the first at the bottom. The largest sum is drawn first. */
export const timingCurves = ({ at_s, names, share }: Pick<Timings, "at_s" | "names" | "share">): Curve[] => {
  const columns = names.map((name) => own(share, name) ?? []);
  const sums = stacked(columns, at_s.length);
  return names
    .map((name, index): Curve => ({ id: name, name, look: lookAt(index), points: ordered(at_s, sums[index] ?? []), values: ordered(at_s, columns[index] ?? []).ys, filled: true }))
    .reverse();
};

/** Return the range of time of a trial's data, so that all its charts show the same time. */
export const clockRange = (columns: readonly (readonly number[])[], start: number | null, end: number | null): [number, number] | null => {
  let [low, high] = [start ?? Infinity, end ?? -Infinity];
  for (const column of columns) {
    for (const value of column) {
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low < high ? [low, high] : null;
};
