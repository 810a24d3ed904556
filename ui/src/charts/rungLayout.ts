/** Places of the reports of one rung. */
import { type Numeric } from "../format/numbers";
import { extent, placeOf, type Scale, scaleOf } from "./scales";

/** One report at a rung, as the API sends it. */
export interface Report {
  readonly trial_id: number;
  readonly number: number;
  readonly metric: Numeric;
  readonly decision: string | null;
  /** Place among `of` reports when the searcher decided. */
  readonly rank: number;
  readonly of: number;
  /** The metric that it had to beat then; null where each report continued, and at the last rung. */
  readonly cut_off: Numeric;
  readonly distance: Numeric;
  readonly is_error: boolean;
  readonly has_left: boolean;
  readonly at: string;
}

/** Fate of a report. */
export type Fate = "continued" | "failed" | "finished" | "left" | "stopped";

/** Return what became of the trial after its report. */
export const fateOf = (report: Report): Fate => {
  if (report.has_left) return "left";
  if (report.is_error || report.decision === null) return "failed";
  if (report.decision === "continue") return "continued";
  return report.decision === "stop" ? "stopped" : "finished";
};

/** One rung, as the API sends it. A long rung has only a part of its entries. */
export interface Reported {
  readonly reported: number;
  readonly continued: number;
  readonly stopped: number;
  readonly entries: readonly Report[];
}

/** Order of the fates in a sentence. */
const FATES: readonly Fate[] = ["continued", "stopped", "finished", "failed", "left"];

/** Return how many reports of a rung had which fate, without zeros. Of a long rung only two fates are known. */
export const fatesOf = ({ reported, continued, stopped, entries }: Reported): [Fate, number][] => {
  const known: Partial<Record<Fate, number>> = entries.length < reported ? { continued, stopped } : {};
  if (entries.length >= reported) for (const entry of entries) known[fateOf(entry)] = (known[fateOf(entry)] ?? 0) + 1;
  return FATES.map((fate): [Fate, number] => [fate, known[fate] ?? 0]).filter(([, times]) => times > 0);
};

const finite = (value: Numeric): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Return the metric as a number that sorts: infinities at the ends, NaN and absent values last. */
const sortable = (value: Numeric, smallerIsBetter: boolean): number => {
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return finite(value) ?? (smallerIsBetter ? Infinity : -Infinity);
};

/** Return the reports of a rung, best first. Reports without a metric are last; equal ones keep the order of their times. */
export const bestFirst = (reports: readonly Report[], smallerIsBetter: boolean): Report[] => {
  const sign = smallerIsBetter ? 1 : -1;
  const keyed = reports.map((report) => ({ report, key: sortable(report.metric, smallerIsBetter), at: Date.parse(report.at) }));
  const comparable = (key: number) => (key === Infinity ? Number.MAX_VALUE : key === -Infinity ? -Number.MAX_VALUE : key);
  keyed.sort((a, b) => {
    const gone = Number(finite(a.report.metric) === null) - Number(finite(b.report.metric) === null);
    return gone || sign * (comparable(a.key) - comparable(b.key)) || a.at - b.at;
  });
  return keyed.map(({ report }) => report);
};

/** Return the scale of metrics that all rungs of a bracket share. Outliers beyond 20 times the middle half are outside. */
export const metricScale = (reports: readonly Report[]): Scale => {
  const values = reports.map(({ metric }) => finite(metric)).filter((value): value is number => value !== null).sort((a, b) => a - b);
  if (values.length < 8) return scaleOf(extent([values]), false, 0.04);
  const at = (share: number) => values[Math.floor(share * (values.length - 1))] ?? 0;
  const reach = 20 * (at(0.75) - at(0.25));
  const kept = reach > 0 ? values.filter((value) => value >= at(0.25) - reach && value <= at(0.75) + reach) : values;
  return scaleOf(extent([kept]), false, 0.04);
};

/** Return the place of a metric on a scale, with the better values at the left. Values outside stay at its ends. */
export const leftIsBetter = (scale: Scale, metric: Numeric, smallerIsBetter: boolean): number => {
  const place = placeOf(scale, finite(metric));
  if (Number.isNaN(place)) return Number.NaN;
  const inside = Math.min(1, Math.max(0, place));
  return smallerIsBetter ? inside : 1 - inside;
};

/**
 * Return levels at which marks of a width do not overlap: each mark takes the lowest level that is free at its place.
 * Marks that find no free level share the highest one.
 */
export const levels = (places: readonly number[], width: number, most: number): number[] => {
  const ends: number[] = Array.from({ length: most }, () => -Infinity);
  const order = places.map((_, index) => index).sort((a, b) => (places[a] ?? 0) - (places[b] ?? 0));
  const result = places.map(() => 0);
  for (const index of order) {
    const place = places[index] ?? Number.NaN;
    if (Number.isNaN(place)) continue;
    const free = ends.findIndex((end) => end <= place + 1e-9);
    const level = free < 0 ? most - 1 : free;
    ends[level] = place + width;
    result[index] = level;
  }
  return result;
};

/** Return the reports that the searcher had when it decided on one: those that were not later and still count. */
export const rivals = (reports: readonly Report[], of: Report): Report[] => {
  const at = Date.parse(of.at);
  return reports.filter((report) => report.trial_id !== of.trial_id && !report.has_left && Date.parse(report.at) <= at);
};
