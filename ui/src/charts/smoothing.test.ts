// @vitest-environment node
import { expect, test } from "vitest";

import { smoothed } from "./smoothing";

const xs = Array.from({ length: 100 }, (_, index) => index);

test("a weight of zero changes nothing", () => {
  expect(smoothed([1, 2, 3], [5, null, 7], 0)).toEqual([5, null, 7]);
});

test("a constant stays constant from its first value", () => {
  for (const value of smoothed(xs, xs.map(() => 4), 0.9)) expect(value).toBeCloseTo(4);
});

test("noise shrinks and gaps stay gaps", () => {
  const noisy = xs.map((x) => (x === 50 ? null : x % 2));
  const result = smoothed(xs, noisy, 0.99);
  expect(result[50]).toBeNull();
  const late = result.slice(60).map((value) => value ?? 0);
  expect(Math.max(...late) - Math.min(...late)).toBeLessThan(0.2);
});

test("leaving out every second point of a ramp changes the curve little", () => {
  const all = smoothed(xs, xs, 0.9);
  const half = xs.filter((x) => x % 2 === 0 || x === 99);
  const reduced = smoothed(half, half, 0.9);
  expect(Math.abs((all[99] ?? 0) - (reduced[half.length - 1] ?? 0))).toBeLessThan(1.5);
});

test("NaN, infinity and an x that runs backwards give no NaN", () => {
  const result = smoothed([1, 2, 1, 3, 3], [1, Number.NaN, 2, Infinity, 3], 0.9);
  expect(result.map((value) => value === null || Number.isFinite(value))).toEqual([true, true, true, true, true]);
  expect(smoothed([5, 5, 5], [1, 2, 3], 0.9).every((value) => value !== null && Number.isFinite(value))).toBe(true);
});
