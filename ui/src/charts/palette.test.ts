// @vitest-environment node
import { expect, test } from "vitest";

import { COLORS, distinctLooks, diverging, FILLS, lookOfTrial, type Mode, sequential } from "./palette";

type Triple = [number, number, number];

const linear = (hex: string): Triple =>
  [1, 3, 5].map((at) => {
    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as Triple;

const times = (matrix: Triple[], [r, g, b]: Triple): Triple => matrix.map(([x, y, z]) => Math.min(1, Math.max(0, x * r + y * g + z * b))) as Triple;

const oklab = ([r, g, b]: Triple): Triple => {
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
};

/** Full dichromacy. Source: Machado, Oliveira, Fernandes 2009. */
const VISIONS: Record<string, Triple[]> = {
  normal: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

const luminance = (hex: string): number => {
  const [r, g, b] = linear(hex);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

const contrast = (a: string, b: string): number => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y) as [number, number];
  return (high + 0.05) / (low + 0.05);
};

const PAGES: Record<Mode, string[]> = { light: ["#ffffff"], dark: ["#000000", "#111111"] };

/** Least distance of two colours in OKLab under any vision. Neighbours of a scale of twelve steps of viridis have 0.08. */
const LEAST = 0.12;

/** Return the smallest distance of two of the colours under any of the visions. */
const least = (colors: readonly string[]): number => {
  let found = Infinity;
  for (const matrix of Object.values(VISIONS)) {
    const seen = colors.map((color) => oklab(times(matrix, linear(color))));
    seen.forEach((a, i) => {
      for (const b of seen.slice(i + 1)) found = Math.min(found, Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]));
    });
  }
  return found;
};

test("simulated visions confuse the colours that their readers confuse", () => {
  const distance = (vision: string, a: string, b: string) => {
    const [one, other] = [a, b].map((color) => oklab(times(VISIONS[vision] ?? [], linear(color)))) as [Triple, Triple];
    return Math.hypot(one[0] - other[0], one[1] - other[1], one[2] - other[2]);
  };
  expect(distance("deuteranopia", "#4d9900", "#b37100")).toBeLessThan(distance("normal", "#4d9900", "#b37100") / 2);
  expect(distance("tritanopia", "#00a0b0", "#00a050")).toBeLessThan(distance("normal", "#00a0b0", "#00a050") / 2);
  for (const vision of Object.keys(VISIONS)) expect(distance(vision, "#000000", "#ffffff")).toBeCloseTo(1, 2);
});

for (const mode of ["light", "dark"] as const) {
  test(`colours of the ${mode} mode have a contrast of 3:1 to the page`, () => {
    for (const color of COLORS[mode]) for (const page of PAGES[mode]) expect(contrast(color, page)).toBeGreaterThanOrEqual(3);
  });

  test(`colours of the ${mode} mode differ for readers with any kind of colour vision`, () => {
    expect(least(COLORS[mode])).toBeGreaterThan(LEAST);
  });

  test(`filled squares of the ${mode} mode differ for readers with any kind of colour vision`, () => {
    // "ending" is a state of slots and "done" one of trials and shards: no picture has both.
    const colors = [...new Set(Object.values(FILLS[mode]))];
    expect(colors).toHaveLength(6);
    expect(least(colors)).toBeGreaterThan(LEAST);
  });
}

test("a trial has the same look on each page, and the first 32 trials differ", () => {
  expect(lookOfTrial(7)).toEqual(lookOfTrial(7));
  expect(new Set(Array.from({ length: 32 }, (_, number) => JSON.stringify(lookOfTrial(number)))).size).toBe(32);
  expect(lookOfTrial(Number.NaN)).toEqual({ color: 0, dash: 0 });
});

test("compared trials have different colours, and each keeps its own where possible", () => {
  expect(distinctLooks([1, 9, 17])).toEqual([{ color: 1, dash: 0 }, { color: 0, dash: 0 }, { color: 2, dash: 0 }]);
  expect(distinctLooks([3, 5])).toEqual([lookOfTrial(3), lookOfTrial(5)]);
  expect(new Set(distinctLooks([0, 8, 16, 24, 32, 40, 48, 56]).map(({ color }) => color)).size).toBe(8);
});

test("lines of one chart look different, though their trials have the same number", () => {
  const looks = distinctLooks(Array.from({ length: 40 }, () => 3)).map((look) => JSON.stringify(look));
  expect(new Set(looks).size).toBe(32);
  expect(looks[0]).toBe(JSON.stringify(lookOfTrial(3)));
  expect(new Set(looks.slice(0, 20)).size).toBe(20);
});

test("scales accept values outside of their range and NaN", () => {
  expect(sequential(2, "light")).toBe(sequential(1, "light"));
  expect(sequential(Number.NaN, "dark")).toBe(sequential(0, "dark"));
  expect(diverging(-9, "dark")).toBe(diverging(-1, "dark"));
});
