// @vitest-environment node
import { expect, test } from "vitest";

import { extent, placeOf, scaleOf, ticks, valueAt } from "./scales";

test("the extent ignores gaps, NaN and infinite values", () => {
  expect(extent([[null, 3, Number.NaN], [Infinity, -2]])).toEqual([-2, 3]);
  expect(extent([[null, Number.NaN]])).toBeNull();
});

test("a log axis has no place for zero and negative values", () => {
  expect(extent([[-5, 0, 10, 1000]], true)).toEqual([10, 1000]);
  const scale = scaleOf([10, 1000], true);
  expect(placeOf(scale, 0)).toBeNaN();
  expect(placeOf(scale, -1)).toBeNaN();
  expect(placeOf(scale, 100)).toBeCloseTo(0.5);
});

test("place and value are inverse to each other", () => {
  for (const scale of [scaleOf([-3, 9]), scaleOf([1e-5, 10], true), scaleOf([2, 2]), scaleOf([0, 0]), scaleOf(null)]) {
    for (const place of [0, 0.3, 1]) expect(placeOf(scale, valueAt(scale, place))).toBeCloseTo(place);
  }
});

test("equal values are in the middle of their axis", () => {
  expect(placeOf(scaleOf([7, 7]), 7)).toBeCloseTo(0.5);
  expect(placeOf(scaleOf([0, 0]), 0)).toBeCloseTo(0.5);
  expect(placeOf(scaleOf([-7, -7]), -7)).toBeCloseTo(0.5);
  expect(placeOf(scaleOf([7, 7], true), 7)).toBeCloseTo(0.5);
});

test("the largest numbers of a float have a finite axis", () => {
  const scale = scaleOf([-1.7e308, 1.7e308]);
  expect(Number.isFinite(scale.max - scale.min)).toBe(true);
  expect(ticks(scale, 5).length).toBeGreaterThan(0);
});

test("ticks are round numbers within the range", () => {
  expect(ticks(scaleOf([0, 1]), 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(ticks(scaleOf([0.1, 0.3]), 2)).toEqual([0.1, 0.2, 0.3]);
  expect(ticks(scaleOf([-130, 260]), 4)).toEqual([-100, 0, 100, 200]);
});

test("a log axis is labelled by powers of ten, and by linear steps within one decade", () => {
  expect(ticks(scaleOf([1e-5, 1], true), 6)).toEqual([1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1]);
  expect(ticks(scaleOf([1e-30, 1], true), 4)).toHaveLength(4);
  expect(ticks(scaleOf([0.2, 0.4], true), 4)).toEqual([0.2, 0.25, 0.3, 0.35, 0.4]);
  expect(ticks(scaleOf([1, 100], true), 8)).toEqual([1, 2, 5, 10, 20, 50, 100]);
});
