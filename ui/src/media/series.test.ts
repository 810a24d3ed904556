import { describe, expect, it } from "vitest";

import { itemAt, keysOf, LATEST, type MediaItem, placeOf, stepsOf, type TrialMedia } from "./series";

const item = (step: number): MediaItem => ({ at: "2026-01-01T00:00:00Z", attempt: 1, kind: "image", path: `p${step}`, size_bytes: 1, step });
const media = (series: Record<string, number[]>): TrialMedia => ({ series: Object.entries(series).map(([key, steps]) => ({ items: steps.map(item), key })), truncated: false });

describe("the slider", () => {
  const steps = [10, 20, 40];

  it("has the steps of all series of all trials once", () => {
    expect(stepsOf([media({ a: [20, 10], b: [20] }), media({ a: [40] })])).toEqual(steps);
    expect(keysOf([media({ b: [1] }), media({ a: [1], b: [2] })])).toEqual(["a", "b"]);
  });

  it.each([
    [LATEST, 2],
    [0, 0],
    [10, 0],
    [19, 0],
    [20, 1],
    [39, 1],
    [40, 2],
    [1_000, 2],
  ])("at step %i is at place %i", (wanted, place) => {
    expect(placeOf(steps, wanted)).toBe(place);
  });

  it("shows the latest report of a series up to its step", () => {
    const items = [item(10), item(30)];
    expect([5, 10, 29, 30, 99].map((step) => itemAt(items, step)?.step ?? null)).toEqual([null, 10, 10, 30, 30]);
  });
});
