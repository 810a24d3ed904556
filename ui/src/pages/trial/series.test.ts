// @vitest-environment node
import { expect, test } from "vitest";

import { type MetricSeries, type TelemetrySeries } from "../../api/trial";
import { clockRange, metricCurves, systemCharts, timingCurves, withGaps } from "./series";

const reported = (changes: Partial<MetricSeries> = {}): MetricSeries => ({
  group: "validation", name: "loss", batches: [10, 20, 30], epochs: [1, null, 3], at_s: [100, 200, 900], y: [3, 2, 1], attempt: [1, 1, 2], sampled: false, ...changes,
});

const sampled = (changes: Partial<TelemetrySeries>): TelemetrySeries => ({
  attempt: 1, host: "gpu-1", device: "GPU-b", rank: null, metric: "gpu_util", unit: "%", at_s: [1, 2], mean: [50, 60], minimum: [40, 50], maximum: [60, 70], ...changes,
});

test("over time there is a gap between two attempts, over batches there is none", () => {
  expect(withGaps(reported(), "clock")).toEqual({ xs: [100, 200, 900, 900], ys: [3, 2, null, 1], sorted: false });
  expect(withGaps(reported(), "batches").ys).toEqual([3, 2, 1]);
});

test("reports without an epoch are left out of the axis of epochs", () => {
  expect(withGaps(reported(), "epochs")).toEqual({ xs: [1, 3], ys: [3, 1], sorted: false });
});

test("a host's clock that ran backwards is noticed", () => {
  expect(withGaps(reported({ at_s: [100, 50, 900] }), "clock").sorted).toBe(true);
});

test("a chart of a metric has training and validation in fixed colours", () => {
  const curves = metricCurves([reported({ group: "training" }), reported(), reported({ name: "accuracy" })], "loss", "batches", 0.5);
  expect(curves.map(({ id, look }) => [id, look.color])).toEqual([["training/loss", 1], ["validation/loss", 0]]);
  expect(curves[0]?.raw?.ys).toEqual([3, 2, 1]);
});

test("system metrics have a chart each, GPUs are numbered within their host, and attempts are joined with a gap", () => {
  const charts = systemCharts([
    sampled({ metric: "cpu_util", device: null }), sampled({ attempt: 2, at_s: [9], mean: [70], minimum: [70], maximum: [70] }), sampled({}), sampled({ device: "GPU-a" }),
    sampled({ metric: "unknown", unit: "furlong", rank: 3, device: null }),
  ]);
  expect(charts.map(({ title, kind }) => [title, kind])).toEqual([["GPU utilization", "percent"], ["CPU utilization", "percent"], ["unknown", "number"]]);
  expect(charts[0]?.curves.map(({ name }) => name)).toEqual(["gpu-1, GPU 0", "gpu-1, GPU 1"]);
  expect(charts[0]?.curves[1]?.points.ys).toEqual([50, 60, null, 70]);
  expect(charts[2]?.curves[0]?.name).toBe("rank 3 on gpu-1");
});

test("a fact that is zero on a healthy host has a chart only if it is not", () => {
  const zero = { mean: [0], minimum: [0], maximum: [0], at_s: [1] };
  const metrics = (...series: Parameters<typeof sampled>[0][]) => systemCharts(series.map(sampled)).map(({ metric }) => metric);
  expect(metrics({ metric: "cpu_steal", ...zero }, { metric: "gpu_ecc_errors", ...zero }, { metric: "cpu_util", ...zero })).toEqual(["cpu_util"]);
  expect(metrics({ metric: "cpu_throttled", ...zero, rank: 0 }, { metric: "cpu_throttled", ...zero, rank: 1, maximum: [70] })).toEqual(["cpu_throttled"]);
});

test("shares of timings are stacked, the whole is drawn before its parts", () => {
  const curves = timingCurves({ at_s: [1, 2], names: ["load", "train"], share: { load: [0.2, null], train: [0.7, 0.9] } });
  expect(curves.map(({ id }) => id)).toEqual(["train", "load"]);
  expect(curves[0]?.points.ys.map((value) => Number(value?.toFixed(2)))).toEqual([0.9, 0.9]);
  expect(curves.map(({ values }) => values)).toEqual([[0.7, 0.9], [0.2, null]]);
});

test("the time of all charts spans the data and the trial's life", () => {
  expect(clockRange([[5, 9], [Number.NaN]], 3, null)).toEqual([3, 9]);
  expect(clockRange([], null, null)).toBeNull();
  expect(clockRange([[5]], null, null)).toBeNull();
});

test("over time a join leads over the gap between two attempts, and over no other gap", () => {
  const ofTwo = reported({ at_s: [100, 200, 300, 900], batches: [1, 2, 3, 4], epochs: [1, 2, 3, 4], y: [3, null, 2, 1], attempt: [1, 1, 1, 2] });
  for (const smooth of [0, 0.5]) expect(metricCurves([ofTwo], "loss", "clock", smooth).map(({ joins }) => joins)).toEqual([[3]]);
  expect(metricCurves([ofTwo], "loss", "batches", 0)[0]?.joins).toEqual([]);
});
