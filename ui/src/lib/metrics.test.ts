// @vitest-environment node
import { expect, test } from "vitest";

import { type MetricName } from "../api/charts";
import { byName, inOrder, metricKey, metricOf } from "./metrics";

const metrics: MetricName[] = [
  { group: "training", name: "loss" }, { group: "validation", name: "accuracy" }, { group: "validation", name: "loss" }, { group: "training", name: "a/b" },
];

test("a metric survives the address of a page, with slashes in its name", () => {
  for (const metric of metrics) expect(metricOf(metricKey(metric))).toEqual(metric);
  for (const text of ["", "loss", "test/loss", "validation/", "/loss"]) expect(metricOf(text)).toBeNull();
});

test("the searcher's metric is first, and validation is before training", () => {
  expect(inOrder(metrics, "loss").map(metricKey)).toEqual(["validation/loss", "training/loss", "validation/accuracy", "training/a/b"]);
  expect(inOrder(metrics, null)[0]).toEqual({ group: "validation", name: "accuracy" });
});

test("built-in metrics have addresses and come last, whatever the searcher's metric is", () => {
  const builtin: MetricName = { group: "builtin", name: "loss" };
  expect(metricOf(metricKey(builtin))).toEqual(builtin);
  expect(inOrder([builtin, ...metrics], "loss").at(-1)).toEqual(builtin);
});

test("training and validation of one name share a chart", () => {
  expect(byName(metrics)).toEqual([
    { name: "loss", groups: ["training", "validation"] }, { name: "accuracy", groups: ["validation"] }, { name: "a/b", groups: ["training"] },
  ]);
});
