// @vitest-environment node
import { expect, test } from "vitest";

import { goodness, quantile } from "./ranks";

test("quantiles lie between the values", () => {
  expect(quantile([1, 2, 3], 0.5)).toBe(2);
  expect(quantile([1, 2], 0.5)).toBe(1.5);
  expect(quantile([], 0.5)).toBeNaN();
});

test("the best metric has 1 and the worst 0, whatever is better", () => {
  expect(Array.from(goodness([1, 2, 3], false)).map((place) => Number(place.toFixed(2)))).toEqual([0, 0.5, 1]);
  expect(Array.from(goodness([1, 2, 3], true)).map((place) => Number(place.toFixed(2)))).toEqual([1, 0.5, 0]);
});

test("one diverged trial leaves the differences of the remaining ones visible", () => {
  const values = [...Array.from({ length: 40 }, (_, index) => index), 1e30];
  const places = goodness(values, true);
  expect((places[5] ?? 0) - (places[30] ?? 0)).toBeGreaterThan(0.5);
});

test("trials without a metric have no place, equal ones are in the middle", () => {
  expect(goodness([null, Number.NaN], true).every((place) => Number.isNaN(place))).toBe(true);
  expect(Array.from(goodness([4, 4], true))).toEqual([0.5, 0.5]);
});
