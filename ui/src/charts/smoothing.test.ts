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

test("a curve of few points is smoothed visibly", () => {
  expect(smoothed([1_000, 2_000, 3_000, 4_000], [0, 1, 0, 1], 0.9)[3]).toBeLessThan(0.7);
});

test("leaving out every second point of a long curve changes it little", () => {
  const long = Array.from({ length: 4_000 }, (_, index) => index);
  const all = smoothed(long, long, 0.99);
  const half = long.filter((x) => x % 2 === 0 || x === 3_999);
  const reduced = smoothed(half, half, 0.99);
  expect(Math.abs((all[3_999] ?? 0) - (reduced[half.length - 1] ?? 0))).toBeLessThan(40);
});

test("NaN, infinity and an x that runs backwards give no NaN", () => {
  const result = smoothed([1, 2, 1, 3, 3], [1, Number.NaN, 2, Infinity, 3], 0.9);
  expect(result.map((value) => value === null || Number.isFinite(value))).toEqual([true, true, true, true, true]);
  expect(smoothed([5, 5, 5], [1, 2, 3], 0.9).every((value) => value !== null && Number.isFinite(value))).toBe(true);
});
