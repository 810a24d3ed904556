// @vitest-environment node
import { expect, test } from "vitest";

import { axisX, chunks, lineAt } from "./parallelPaint";

const box = { left: 10, top: 0, width: 100, height: 100 };
const lines = { columns: [Float32Array.from([0, 1]), Float32Array.from([1, 0])], shades: Float32Array.from([0, 1]) };

test("axes span the width, and a single one is in the middle", () => {
  expect([0, 1, 2].map((index) => axisX(box, index, 3))).toEqual([10, 60, 110]);
  expect(axisX(box, 0, 1)).toBe(60);
});

test("each line is painted once, in strokes of one colour", () => {
  const shades = Float32Array.from({ length: 500 }, (_, index) => (index % 7 === 0 ? Number.NaN : index / 500));
  const parts = chunks(shades, (index) => index !== 3);
  const painted = parts.flatMap((part) => part.lines);
  expect(painted).toHaveLength(499);
  expect(new Set(painted).size).toBe(499);
  expect(parts.every((part) => part.lines.length <= 48)).toBe(true);
  expect(parts[0]?.bucket).toBe(-1);
});

test("the line under the pointer is a selected one", () => {
  const all = Uint8Array.from([1, 1]);
  expect(lineAt(lines, all, box, 15, 95, 10)).toBe(0);
  expect(lineAt(lines, all, box, 15, 5, 10)).toBe(1);
  expect(lineAt(lines, Uint8Array.from([0, 1]), box, 15, 95, 10)).toBe(-1);
  expect(lineAt(lines, all, box, 5_000, -5_000, 10)).toBe(-1);
  expect(lineAt({ columns: [], shades: new Float32Array() }, all, box, 15, 95, 10)).toBe(-1);
});

test("the search for a line among 10,000 with 12 axes is fast", () => {
  const columns = Array.from({ length: 12 }, (_, axis) => Float32Array.from({ length: 10_000 }, (_, index) => ((index * (axis + 7)) % 997) / 997));
  const marks = new Uint8Array(10_000).fill(1);
  const before = performance.now();
  for (let round = 0; round < 20; round += 1) lineAt({ columns, shades: new Float32Array(10_000) }, marks, box, round * 5, 50, 8);
  expect((performance.now() - before) / 20).toBeLessThan(16);
});
