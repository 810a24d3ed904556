// @vitest-environment node
import { expect, test } from "vitest";

import { asText, brushed, countOf, fromText, moved, reordered, selected } from "./brushes";

const axes = [
  { name: "lr", places: Float32Array.from([0, 0.5, 1, -0.08]) },
  { name: "depth", places: Float32Array.from([1, 0.5, 0, 0.5]) },
];

test("a trial is selected if it is within the ranges of all axes", () => {
  expect(Array.from(selected(axes, { lr: [0.4, 1] }, 4))).toEqual([0, 1, 1, 0]);
  expect(Array.from(selected(axes, { lr: [0.4, 1], depth: [0.4, 0.6] }, 4))).toEqual([0, 1, 0, 0]);
  expect(countOf(selected(axes, {}, 4))).toBe(4);
});

test("a range that begins below the axis includes trials without a value", () => {
  expect(Array.from(selected(axes, { lr: [-0.12, 0.1] }, 4))).toEqual([1, 0, 0, 1]);
});

test("an axis of the name of an object's method is no range", () => {
  expect(countOf(selected([{ name: "constructor", places: Float32Array.from([5]) }], {}, 1))).toBe(1);
});

test("a drag sets a range, and a click removes it", () => {
  expect(brushed({}, "lr", 0.8, 0.2)).toEqual({ lr: [0.2, 0.8] });
  expect(brushed({ lr: [0.2, 0.8] }, "lr", 0.5, 0.505)).toEqual({});
  expect(brushed({}, "lr", -5, 5)).toEqual({ lr: [-0.12, 1.02] });
});

test("a range that is moved keeps its size and stays on the axis", () => {
  expect(moved({ lr: [0.5, 0.75] }, "lr", 9)["lr"]).toEqual([0.77, 1.02]);
  expect(moved({}, "lr", 1)).toEqual({});
});

test("axes change their order", () => {
  expect(reordered(["a", "b", "c"], "a", 2)).toEqual(["b", "c", "a"]);
  expect(reordered(["a", "b", "c"], "c", 0)).toEqual(["c", "a", "b"]);
});

test("ranges survive the address of the page, with any name", () => {
  const brushes = { "a,b <i>": [0.25, 0.5] as const, lr: [-0.12, 1] as const };
  expect(fromText(asText(brushes))).toEqual(brushes);
  expect(fromText(["x", "1,0,lr", "a,b,c", ""])).toEqual({});
});
