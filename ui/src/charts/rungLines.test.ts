// @vitest-environment node
import { expect, test } from "vitest";

import { type Report } from "./rungLayout";
import { axisX, axisY, linesOf, type RungData } from "./rungLines";

const report = (trial_id: number, metric: Report["metric"]): Report => ({
  trial_id, number: trial_id, metric, decision: "continue", rank: 1, of: 1, cut_off: null, distance: null, is_error: false, has_left: false, at: "2026-01-01T00:00:00Z",
});
const rung = (metrics: Report["metric"][], cut_off: number | null, index = 0): RungData => ({ rung: index, units: 1, cut_off, entries: metrics.map((metric, id) => report(id, metric)) });

test("the best report is at the left, whether smaller or larger is better", () => {
  const left = (smallerIsBetter: boolean) => linesOf([rung([3, 1, 2], null)], smallerIsBetter, "value")[0]?.dots.toSorted((a, b) => a.x - b.x)[0]?.report.metric;
  expect(left(true)).toBe(1);
  expect(left(false)).toBe(3);
});

test("reports that pass the cut-off are at its left, by value and by order", () => {
  for (const by of ["order", "value"] as const) {
    const [line] = linesOf([rung([0.1, 0.2, 0.3, 0.4], 0.2)], true, by);
    const cut = line?.cutOff ?? Number.NaN;
    const epsilon = 1e-9;
    expect(line?.dots.filter(({ x }) => x <= cut + epsilon).map(({ report: { metric } }) => metric)).toEqual([0.1, 0.2]);
  }
});

test("a report without a metric stands at the end, and each row keeps its own height", () => {
  const lines = linesOf([rung([1, "nan", null], null), rung([1], null, 1)], true, "value");
  expect(lines[0]?.dots.filter(({ x }) => x > 1)).toHaveLength(2);
  lines.forEach(({ dots }, row) => dots.forEach(({ y }) => expect(Math.floor(-y)).toBe(row)));
});

test("a rung of 10,000 reports stays within its row", () => {
  const [line] = linesOf([rung(Array.from({ length: 10_000 }, () => 0.5), 0.5)], true, "value");
  expect(line?.dots.every(({ y }) => y < 0 && y > -1)).toBe(true);
});

test("axes have the values of the metric from better to worse, and a row per rung", () => {
  const labels = axisX([rung([0, 1], null)], false, "value", "accuracy").labels?.map(({ text }) => text) ?? [];
  expect(labels[0]).toBe("1");
  expect(labels.at(-1)).toBe("0");
  expect(axisX([], false, "value", "accuracy").name?.split(/\s+/)).toEqual(["←", "better", "accuracy", "worse", "→"]);
  expect(axisY([rung([1], null), { ...rung([1], null, 1), units: 4 }], "epochs").labels?.map(({ text }) => text)).toEqual(["Rung 0: 1 epoch", "Rung 1: 4 epochs"]);
  expect(axisX([], true, "value", "loss").labels?.length).toBeGreaterThan(0);
});
