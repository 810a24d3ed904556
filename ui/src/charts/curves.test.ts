// @vitest-environment node
import { expect, test, vi } from "vitest";

import { type Curve, joinedRange, notPositive, paintCurve, rangeOfX, readings, scaleOfY } from "./curves";
import { stepped } from "./keyboard";
import { type Area } from "./plotHost";

const curve = (id: string, xs: number[], ys: (number | null)[]): Curve => ({ id, name: id, look: { color: 0, dash: 0 }, points: { xs, ys } });
const area: Area = { left: 0, top: 0, width: 100, height: 100, ratio: 1, toX: (x) => x, toY: (y) => 100 - y };
const usual = { log: false, robust: false, fromZero: false };

test("the y axis fits the points within the zoom", () => {
  const curves = [curve("a", [0, 10, 20], [1000, 5, 6])];
  expect(scaleOfY(curves, null, usual).max).toBeGreaterThan(1000);
  expect(scaleOfY(curves, [10, 20], usual).max).toBeLessThan(7);
});

test("the extremes of a diverged start can be left outside", () => {
  const ys = [1e6, ...Array.from({ length: 200 }, (_, at) => 1 + at / 200)];
  const curves = [curve("a", ys.map((_, at) => at), ys)];
  expect(scaleOfY(curves, null, { ...usual, robust: true }).max).toBeLessThan(3);
});

test("an axis from zero has zero, also without data and with zeros alone", () => {
  for (const ys of [[5, 6], [0, 0], [null]]) {
    const scale = scaleOfY([curve("a", ys.map((_, at) => at), ys)], null, { ...usual, fromZero: true });
    expect(scale.min).toBe(0);
    expect(scale.max).toBeGreaterThan(0);
  }
});

test("charts without curves and with one point have axes", () => {
  expect(rangeOfX([], false)).toBeNull();
  expect(scaleOfY([], null, usual).max).toBeGreaterThan(scaleOfY([], null, usual).min);
  expect(scaleOfY([curve("a", [1], [3])], null, usual)).toMatchObject({ min: 1.5, max: 4.5 });
});

test("data extend a given range, but a clock that is wrong by years does not", () => {
  expect(joinedRange([0, 10], [-2, 8])).toEqual([-2, 10]);
  expect(joinedRange([100, 110], [-1e9, 1e9])).toEqual([90, 120]);
  expect(joinedRange(null, [1, 2])).toEqual([1, 2]);
  expect(joinedRange([1, 2], null)).toEqual([1, 2]);
});

test("values that a log axis cannot show are counted", () => {
  expect(notPositive([curve("a", [0, 1, 2, 3], [1, 0, -1, null])])).toBe(2);
});

test("the curve nearest to the pointer is read first, and curves that ended before it are not read", () => {
  const curves = [curve("a", [0, 50, 100], [10, 10, 10]), curve("b", [0, 50, 100], [80, 80, 80]), curve("c", [0, 10], [15, 15])];
  expect(readings(curves, 55, 25, area).map(({ curve: { id } }) => id)).toEqual(["b", "a"]);
  expect(readings(curves, 55, 85, area).map(({ curve: { id } }) => id)).toEqual(["a", "b"]);
  expect(readings(curves, 30, null, area).map(({ curve: { id } }) => id)).toEqual(["a", "b", "c"]);
  expect(readings(curves, 40, null, area).map(({ curve: { id } }) => id)).toEqual(["a", "b"]);
  expect(readings([], 55, 85, area)).toEqual([]);
});

test("a part on top of others is read with its own value, and is the nearest one within its own area", () => {
  const part = (id: string, height: number, value: number): Curve => ({ ...curve(id, [0, 10], [height, height]), values: [value, value], filled: true });
  const parts = [part("upper", 90, 50), part("lower", 40, 40)];
  expect(readings(parts, 5, 55, area).map(({ curve: { id }, y }) => [id, y])).toEqual([["upper", 50], ["lower", 40]]);
  expect(readings(parts, 5, 65, area).map(({ curve: { id }, y }) => [id, y])).toEqual([["lower", 40], ["upper", 50]]);
  expect(stepped("Home", parts, null, [0, 10])).toMatchObject({ x: 0, y: 50 });
});

test("lone points are dots, and a dotted line joins two attempts", () => {
  vi.stubGlobal("Path2D", class { moveTo() {} lineTo() {} });
  const steps: string[] = [];
  let dash: number[] = [];
  const pen = {
    save: () => undefined, restore: () => undefined, beginPath: () => undefined, fill: () => undefined, stroke: () => undefined, setLineDash: (next: number[]) => { dash = next; },
    arc: (x: number, y: number) => steps.push(`dot ${x},${y}`), moveTo: (x: number, y: number) => steps.push(`from ${x},${y} dash ${dash.join()}`), lineTo: (x: number, y: number) => steps.push(`to ${x},${y}`),
  };
  const gap = { ...curve("a", [1, 2, 9, 9, 10, 20, 20, 21], [5, 6, null, 7, 8, null, null, 3]), joins: [2, 5] };
  paintCurve(pen as unknown as CanvasRenderingContext2D, gap, area, "light", 1, 2);
  expect(steps).toEqual(["dot 21,97", "from 2,94 dash 1,4", "to 9,93"]);
  vi.unstubAllGlobals();
});
