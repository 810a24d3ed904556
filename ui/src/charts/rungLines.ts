/** Rows of the rung chart: where each report stands. */
import { type Numeric, number, plural } from "../format/numbers";
import { labelTexts } from "./axisText";
import { type AxisSpec } from "./plotHost";
import { bestFirst, type Fate, fateOf, leftIsBetter, levels, metricScale, type Report } from "./rungLayout";
import { ticks } from "./scales";

/** One rung, as the API sends it. */
export interface RungData {
  readonly rung: number;
  readonly units: number;
  readonly cut_off: Numeric;
  readonly entries: readonly Report[];
}

/** Whether reports are placed by their order or by their value. */
export type By = "order" | "value";

/** A report with its place within the chart: x from 0 (best) to 1, y in rows, downwards below 0. */
export interface Dot {
  readonly report: Report;
  readonly fate: Fate;
  readonly row: number;
  readonly x: number;
  readonly y: number;
}

/** One row. */
export interface Line {
  readonly rung: RungData;
  readonly dots: readonly Dot[];
  readonly cutOff: number | null;
}

const LEVELS = 7;
/** Height between two levels, as a share of the row. */
const LEVEL = 0.11;
/** Middle of the dots in their row. The label of the cut-off is above them. */
const MIDDLE = 0.58;
/** Width of one mark as a share of the chart. */
const MARK = 0.011;
/** Place of reports without a metric. */
const NO_METRIC = 1.03;

const finite = (value: Numeric): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);

const passes = (metric: Numeric, cut: number, smallerIsBetter: boolean): boolean => {
  const value = finite(metric);
  return value !== null && (smallerIsBetter ? value <= cut : value >= cut);
};

const inOrder = (rung: RungData, sorted: readonly Report[], smallerIsBetter: boolean): { xs: number[]; cutOff: number | null } => {
  const step = 1 / Math.max(12, sorted.length);
  const cut = finite(rung.cut_off);
  const passed = cut === null ? 0 : sorted.filter(({ metric }) => passes(metric, cut, smallerIsBetter)).length;
  return { xs: sorted.map((_, index) => (index + 0.5) * step), cutOff: cut === null ? null : passed * step };
};

/** Return the rows of a bracket. */
export const linesOf = (rungs: readonly RungData[], smallerIsBetter: boolean, by: By): Line[] => {
  const scale = metricScale(rungs.flatMap(({ entries }) => entries));
  return rungs.map((rung, row) => {
    const sorted = bestFirst(rung.entries, smallerIsBetter);
    const cut = leftIsBetter(scale, rung.cut_off, smallerIsBetter);
    const places =
      by === "order"
        ? inOrder(rung, sorted, smallerIsBetter)
        : { xs: sorted.map(({ metric }) => leftIsBetter(scale, metric, smallerIsBetter)), cutOff: Number.isNaN(cut) ? null : cut };
    const xs = places.xs.map((x) => (Number.isNaN(x) ? NO_METRIC : x));
    const at = levels(xs, MARK, LEVELS);
    const highest = Math.max(0, ...at);
    const dots = sorted.map((report, index) => ({
      report, fate: fateOf(report), row, x: xs[index] ?? NO_METRIC, y: -row - MIDDLE + ((at[index] ?? 0) - highest / 2) * LEVEL,
    }));
    return { rung, dots, cutOff: places.cutOff };
  });
};

/** Return the x axis: values of the metric, better ones at the left. */
export const axisX = (rungs: readonly RungData[], smallerIsBetter: boolean, by: By, metric: string): AxisSpec => {
  const scale = metricScale(rungs.flatMap(({ entries }) => entries));
  const values = by === "order" ? [] : ticks(scale, 7);
  const texts = labelTexts(values, "number");
  const labels = values.map((value, index) => ({ value: leftIsBetter(scale, value, smallerIsBetter), text: texts[index] ?? "" })).sort((a, b) => a.value - b.value);
  // No-break spaces: the name of the axis tells which way its values go, wherever its labels are.
  const name = ["← better", by === "value" ? metric : "in the order of the reports", "worse →"].join("\u00a0".repeat(6));
  return { scale: { min: -0.02, max: 1.06, log: false }, kind: "number", zone: "UTC", labels, name };
};

/** Return the y axis: one row per rung. */
export const axisY = (rungs: readonly RungData[], unit: string): AxisSpec => ({
  scale: { min: -Math.max(1, rungs.length), max: 0, log: false },
  kind: "number",
  zone: "UTC",
  labels: rungs.map(({ rung, units }, row) => ({ value: -row - 0.5, text: `Rung ${rung}: ${Number.isInteger(units) ? plural(units, unit.replace(/s$/, "")) : `${number(units)} ${unit}`}` })),
});
