// @vitest-environment node
import { expect, test } from "vitest";

import { type Curve } from "./curves";
import { stepped } from "./keyboard";

const curve = (id: string, ys: (number | null)[]): Curve => ({ id, name: id, look: { color: 0, dash: 0 }, points: { xs: ys.map((_, at) => at * 10), ys } });
const curves = [curve("a", [1, null, 3]), curve("b", [4, 5, 6])];
const shown: [number, number] = [0, 20];

test("arrow keys move along a curve and skip gaps", () => {
  expect(stepped("ArrowRight", curves, null, shown)).toMatchObject({ x: 0, y: 1 });
  expect(stepped("ArrowRight", curves, { x: 0, series: "a" }, shown)).toMatchObject({ x: 20, y: 3 });
  expect(stepped("ArrowRight", curves, { x: 20, series: "a" }, shown)).toMatchObject({ x: 20, y: 3 });
  expect(stepped("End", curves, { x: 0, series: "b" }, shown)).toMatchObject({ x: 20, y: 6 });
});

test("up and down change the curve at the same x", () => {
  expect(stepped("ArrowDown", curves, { x: 20, series: "a" }, shown)).toMatchObject({ curve: { id: "b" }, x: 20, y: 6 });
  expect(stepped("ArrowUp", curves, { x: 20, series: "a" }, shown)).toMatchObject({ curve: { id: "b" } });
});

test("plus and minus zoom around the place, and 0 shows everything", () => {
  expect(stepped("+", curves, { x: 10, series: "a" }, shown)).toEqual({ kind: "zoom", range: [5, 15] });
  expect(stepped("-", curves, null, [5, 15])).toEqual({ kind: "zoom", range: [0, 20] });
  expect(stepped("0", curves, null, shown)).toEqual({ kind: "zoom", range: null });
});

test("an empty chart and other keys do nothing", () => {
  expect(stepped("ArrowRight", [], null, shown)).toBeNull();
  expect(stepped("ArrowRight", [curve("c", [null])], null, shown)).toBeNull();
  expect(stepped("a", curves, null, shown)).toBeNull();
  expect(stepped("constructor", curves, null, shown)).toBeNull();
});
