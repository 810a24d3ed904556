// @vitest-environment node
import { expect, test } from "vitest";

import { bucketOf, buckets, jitter, pointAt, type PointSet } from "./points";

const set: PointSet = {
  xs: Float32Array.from([0, 0.5, 1, 0.5]), ys: Float32Array.from([0, 0.5, 1, Number.NaN]),
  shades: Float32Array.from([0, 0.5, 1, Number.NaN]), marks: Uint8Array.from([1, 0, 1, 1]),
};
const pixel = (value: number) => value * 100;

test("each point is painted once, faint or full, the best ones last", () => {
  const full = [...buckets(set, true).values()].flat();
  const faint = [...buckets(set, false).values()].flat();
  expect(full).toEqual([3, 0, 2]);
  expect(faint).toEqual([1]);
  expect([...buckets({ ...set, marks: null }, true).values()].flat().sort()).toEqual([0, 1, 2, 3]);
  expect(buckets({ ...set, marks: null }, false).size).toBe(0);
});

test("the ends of the colour scale have a colour", () => {
  expect(bucketOf(0)).toBe(0);
  expect(bucketOf(1)).toBe(23);
  expect(bucketOf(Number.NaN)).toBe(-1);
});

test("the point under the pointer is one that is selected and nearby", () => {
  expect(pointAt(set, pixel, pixel, 98, 99, 10)).toBe(2);
  expect(pointAt(set, pixel, pixel, 50, 50, 10)).toBe(-1);
  expect(pointAt({ ...set, marks: null }, pixel, pixel, 50, 50, 10)).toBe(1);
});

test("the shift of a point is always the same and stays within its category", () => {
  const shifts = Array.from({ length: 200 }, (_, number) => jitter(number));
  expect(shifts.every((shift) => shift >= -0.5 && shift <= 0.5)).toBe(true);
  expect(new Set(shifts).size).toBeGreaterThan(100);
  expect(jitter(5)).toBe(jitter(5));
});
