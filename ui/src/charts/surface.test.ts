// @vitest-environment node
import { describe, expect, it, test } from "vitest";

import { dimensionOf } from "./dimensions";
import drawn from "./optunaPairs.json";
import { ranksOf, surfaceOf } from "./surface";

type Case = Omit<(typeof drawn)[number], "trials"> & { trials: Record<string, number>[] };

const axisOf = (one: Case, name: string) => dimensionOf(name, one.trials.map((trial) => trial[name]), name === "lr");

for (const one of drawn as Case[]) {
  const metric = one.trials.map((trial) => trial.metric ?? null);

  // tests/oracle/test_pair_charts.py compares the file with Optuna itself.
  test(`a contour of ${one.x} and ${one.y} has the values of Optuna's`, () => {
    const [x, y] = [axisOf(one, one.x), axisOf(one, one.y)];
    const found = surfaceOf(x.places, y.places, metric, one.smallerIsBetter, one.grid.length);
    const wanted = one.grid.flat();
    const worst = Math.max(...wanted.map((value, index) => Math.abs(value - (found?.values[index] ?? Number.NaN))));
    expect(worst).toBeLessThan(2e-6);
  });

  test(`ranks of ${one.x} and ${one.y} are those of Optuna's rank plot`, () => {
    const found = ranksOf(metric, false);
    one.ranks.forEach((rank, index) => expect(found[index]).toBeCloseTo(rank, 5));
    expect(ranksOf(metric, true)[0]).toBeCloseTo(1 - (found[0] ?? 0), 5);
  });
}

describe("a surface", () => {
  it("needs trials that differ in both hyperparameters, with a finite metric", () => {
    expect(surfaceOf([], [], [], true)).toBeNull();
    expect(surfaceOf([0.5, 0.5], [0, 1], [1, 2], true)).toBeNull();
    expect(surfaceOf([0, 1], [0, 1], [1, null], true)).toBeNull();
    expect(surfaceOf([0, 1], [0, 1], [1, Number.NaN], true)).toBeNull();
    expect(surfaceOf([0, 1, -0.08], [0, 1, 0.5], [1, 2, 99], true)?.values.every((value) => value >= 1 && value <= 2)).toBe(true);
  });

  it("stays within the values of the trials, also where they are huge or equal", () => {
    const huge = surfaceOf([0, 1], [0, 1], [1e300, -1e300], true);
    expect(huge?.values.every((value) => Math.abs(value) <= 1e300)).toBe(true);
    expect(new Set(surfaceOf([0, 1], [0, 1], [3, 3], true)?.values)).toEqual(new Set([3]));
  });

  it("of 20,000 trials is computed within a frame or two", () => {
    const place = (seed: number) => Array.from({ length: 20_000 }, (_, index) => ((index * seed) % 9973) / 9973);
    const began = performance.now();
    surfaceOf(place(31), place(57), place(101), true);
    // Generous: the machine of CI is shared.
    expect(performance.now() - began).toBeLessThan(1_000);
  });
});

test("ranks of values that are absent or not finite are none", () => {
  expect([...ranksOf([null, Number.NaN, 5], true)]).toEqual([Number.NaN, Number.NaN, 0.5]);
});
