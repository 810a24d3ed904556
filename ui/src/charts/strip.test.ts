// @vitest-environment node
import { expect, test } from "vitest";

import { heat, median, medians, rowHeight } from "./strip";

test("the median ignores absent values", () => {
  expect(median([3, null, 1])).toBe(2);
  expect(median([5, 1, 3])).toBe(3);
  expect(median([null, Number.NaN])).toBeNull();
});

test("each span of time has the median of its own ranks", () => {
  expect(medians([[1, 10], [1, 10], [5, 50]], 2)).toEqual([1, 10]);
});

test("half and double of the median are equally far from the middle", () => {
  expect(heat(1, 1)).toBe(0);
  expect(heat(1.2, 1)).toBeCloseTo(-heat(1 / 1.2, 1));
  expect(heat(9, 1)).toBe(1);
  expect(heat(null, 1)).toBeNaN();
  expect(heat(1, 0)).toBeNaN();
});

test("rows of many ranks are low but visible", () => {
  expect(rowHeight(8)).toBe(18);
  expect(rowHeight(64)).toBe(6);
  expect(rowHeight(4096)).toBe(3);
  expect(rowHeight(0)).toBe(18);
});
