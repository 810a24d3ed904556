// @vitest-environment node
import { expect, test } from "vitest";

import { lonePoints, nearest, ordered, trace } from "./lines";

const drawn = (xs: number[], ys: (number | null)[]): string => {
  const steps: string[] = [];
  const pen = { moveTo: (x: number, y: number) => steps.push(`M${x},${y}`), lineTo: (x: number, y: number) => steps.push(`L${x},${y}`) };
  trace(pen, { xs, ys }, 0, xs.length - 1, (x) => x, (y) => y);
  return steps.join(" ");
};

test("points whose clock ran backwards are sorted, and the caller learns it", () => {
  expect(ordered([1, 3, 2], [10, 30, 20])).toEqual({ xs: [1, 2, 3], ys: [10, 20, 30], sorted: true });
  expect(ordered([1, 2, 2], [1, 2, 3]).sorted).toBe(false);
});

test("points without an x are left out, and values that are not finite become gaps", () => {
  expect(ordered([1, null, Number.NaN, 4], [Number.NaN, 2, 3, Infinity])).toEqual({ xs: [1, 4], ys: [null, null], sorted: false });
});

test("the nearest point has a value", () => {
  const points = { xs: [0, 10, 20, 30], ys: [1, null, 2, 3] };
  expect(nearest(points, 11)).toBe(2);
  expect(nearest(points, -5)).toBe(0);
  expect(nearest(points, 99)).toBe(3);
  expect(nearest({ xs: [], ys: [] }, 1)).toBe(-1);
  expect(nearest({ xs: [1], ys: [null] }, 1)).toBe(-1);
});

test("a gap interrupts the path", () => {
  expect(drawn([0, 10, 20, 30, 40], [1, 2, null, 3, 4])).toBe("M0,1 L0,1 L10,2 M30,3 L30,3 L40,4");
});

test("a single point between gaps is a visible dash", () => {
  expect(drawn([0, 10, 20], [null, 5, null])).toBe("M10,5 L10,5 L11,5");
});

test("points of one column of pixels keep their extremes", () => {
  const path = drawn([0, 0.1, 0.2, 0.3, 5], [1, 9, -9, 2, 3]);
  expect(path).toBe("M0,1 L0,-9 L0,9 L0,2 L5,3");
});

test("a path of 200,000 points within 100 columns has few steps", () => {
  const xs = Array.from({ length: 200_000 }, (_, index) => index / 2_000);
  let steps = 0;
  const count = () => (steps += 1);
  trace({ moveTo: count, lineTo: count }, { xs, ys: xs.map((x) => Math.sin(x * 1e3)) }, 0, xs.length, (x) => x, (y) => y);
  expect(steps).toBeLessThan(400);
});

test("values without a place on a log axis are gaps", () => {
  const steps: string[] = [];
  const pen = { moveTo: () => steps.push("M"), lineTo: () => steps.push("L") };
  trace(pen, { xs: [0, 10, 20, 30], ys: [1, -1, 2, 3] }, 0, 3, (x) => x, (y) => (y > 0 ? y : Number.NaN));
  expect(steps.join("")).toBe("MLLMLL");
});

test("points between gaps or at an end beside a gap are alone", () => {
  expect(lonePoints({ ys: [1, null, 2, 3, null, 4] }, 0, 5)).toEqual([0, 5]);
  expect(lonePoints({ ys: [1] }, 0, 0)).toEqual([0]);
  expect(lonePoints({ ys: [1, 2, null] }, 0, 2)).toEqual([]);
});
