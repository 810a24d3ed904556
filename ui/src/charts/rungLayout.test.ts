// @vitest-environment node
import { expect, test } from "vitest";

import { bestFirst, fateOf, fatesOf, leftIsBetter, levels, metricScale, type Report, rivals } from "./rungLayout";

const report = (trial_id: number, metric: Report["metric"], changes: Partial<Report> = {}): Report => ({
  trial_id, number: trial_id, metric, decision: "continue", rank: 1, of: 1, cut_off: null, distance: null, is_error: false, has_left: false,
  at: `2026-01-01T00:00:${String(trial_id).padStart(2, "0")}Z`, ...changes,
});

const ids = (reports: Report[]) => reports.map(({ trial_id }) => trial_id);

test("reports are sorted best first, with NaN and failures last", () => {
  const reports = [report(1, 0.5), report(2, "nan"), report(3, 0.1), report(4, null), report(5, "inf"), report(6, 0.1)];
  expect(ids(bestFirst(reports, true)).slice(0, 3)).toEqual([3, 6, 1]);
  expect(ids(bestFirst(reports, false)).slice(0, 3)).toEqual([1, 3, 6]);
  expect(ids(bestFirst(reports, true)).slice(3).sort()).toEqual([2, 4, 5]);
});

test("the fate of a report names failures and cleared trials before the decision", () => {
  expect(fateOf(report(1, 1))).toBe("continued");
  expect(fateOf(report(1, 1, { decision: "stop" }))).toBe("stopped");
  expect(fateOf(report(1, null, { is_error: true, decision: "stop" }))).toBe("failed");
  expect(fateOf(report(1, 1, { has_left: true }))).toBe("left");
  expect(fateOf(report(1, 1, { decision: "complete" }))).toBe("finished");
  expect(fateOf(report(1, null, { decision: null }))).toBe("failed");
});

test("the counts of a rung name finished and failed reports, and no zeros", () => {
  const top = [report(1, 1, { decision: "complete" }), report(2, 1, { decision: "complete" }), report(3, null, { is_error: true, decision: null })];
  expect(fatesOf({ reported: 3, continued: 0, stopped: 0, entries: top })).toEqual([["finished", 2], ["failed", 1]]);
  const low = [report(1, 1), report(2, 1, { decision: "stop" }), report(3, 1, { decision: "stop", has_left: true })];
  expect(fatesOf({ reported: 3, continued: 1, stopped: 2, entries: low })).toEqual([["continued", 1], ["stopped", 1], ["left", 1]]);
});

test("the counts of a rung that is shown in part are those of all its reports", () => {
  expect(fatesOf({ reported: 500, continued: 125, stopped: 370, entries: [report(1, 1)] })).toEqual([["continued", 125], ["stopped", 370]]);
});

test("a diverged trial does not squeeze the scale", () => {
  const reports = Array.from({ length: 30 }, (_, index) => report(index, index / 30)).concat(report(99, 1e12));
  expect(metricScale(reports).max).toBeLessThan(2);
  expect(leftIsBetter(metricScale(reports), 1e12, true)).toBe(1);
  expect(leftIsBetter(metricScale(reports), 0, true)).toBeLessThan(0.1);
  expect(leftIsBetter(metricScale(reports), "nan", true)).toBeNaN();
  expect(metricScale([]).max).toBeGreaterThan(metricScale([]).min);
});

test("marks at the same place get different levels", () => {
  expect(levels([0.5, 0.5, 0.9], 0.1, 4)).toEqual([0, 1, 0]);
  expect(levels([0.5, 0.5, 0.5], 0.1, 2)).toEqual([0, 1, 1]);
  expect(levels([Number.NaN], 0.1, 2)).toEqual([0]);
});

test("a report is compared with the reports that the searcher had at that time", () => {
  const reports = [report(1, 1), report(2, 2), report(3, 3, { has_left: true }), report(4, 4), report(9, 9)];
  expect(ids(rivals(reports, report(4, 4)))).toEqual([1, 2]);
});
