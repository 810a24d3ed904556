import { describe, expect, it } from "vitest";

import { barAt, rangeOfBars, slotRows, type SlotSpan, usedShare } from "./slotTimeline";

const at = (second: number) => new Date(second * 1000).toISOString();

const span = (trial_id: number, from: number, to: number | null, placement: Record<string, number[]>, values: Partial<SlotSpan> = {}): SlotSpan => ({
  trial_id, number: trial_id - 1, state: "completed", attempt: 1, attempt_state: "completed", granted_at: at(from), started_at: at(from + 1), ended_at: to === null ? null : at(to), placement, ...values,
});

describe("the timeline of an experiment", () => {
  it("has a row per slot by host and number, and one bar for neighbouring slots of an attempt", () => {
    const { labels, bars } = slotRows([span(1, 0, 10, { "gpu-10": [0], "gpu-2": [1, 0] }), span(2, 10, null, { "gpu-2": [3, 1] })], 20);
    expect(labels).toEqual(["gpu-2 slot 0", "gpu-2 slot 1", "gpu-2 slot 3", "gpu-10 slot 0"]);
    expect(bars.map(({ span: { trial_id }, row, rows, fromS, startS, toS }) => [trial_id, row, rows, fromS, startS, toS])).toEqual([[1, 0, 2, 0, 1, 10], [1, 3, 1, 0, 1, 10], [2, 1, 2, 10, 11, 20]]);
    expect(barAt(bars, 1, 10, 0)?.span.trial_id).toBe(2);
    expect([barAt(bars, 0, 5, 0)?.span.trial_id, barAt(bars, 0, 15, 0), barAt(bars, 9, 5, 0)]).toEqual([1, null, null]);
    expect(rangeOfBars(bars)).toEqual([0, 20]);
  });

  it("has a row per host where there are too many slots, and for hosts whose slots have no numbers", () => {
    const all = Array.from({ length: 121 }, (_, index) => index);
    expect(slotRows([span(1, 0, 1, { b: all, a: [0] })], 2)).toMatchObject({ labels: ["a", "b"], isByHost: true });
    expect(slotRows([span(1, 0, 1, { n1: [] })], 2)).toMatchObject({ labels: ["n1"], bars: [{ row: 0, rows: 1 }] });
  });

  it("accepts clocks that ran backwards, times that are none and names of objects", () => {
    expect(slotRows([span(1, 10, 5, { constructor: [0] })], 20).bars).toMatchObject([{ fromS: 10, startS: 10, toS: 10 }]);
    expect(slotRows([span(1, 0, 1, { a: [0] }, { granted_at: "yesterday" })], 2).bars).toEqual([]);
    expect(slotRows([span(1, 0, 9, { a: [0] }, { started_at: null })], 2).bars[0]?.startS).toBe(9);
    expect([slotRows([], 0).labels, rangeOfBars([]), usedShare([], 0)]).toEqual([[], null, null]);
  });

  it("tells which share of its slots' time it used", () => {
    expect(usedShare([span(1, 0, 10, { a: [0, 1] }), span(2, 10, null, { a: [0] })], 20)).toBe(0.75);
    expect(usedShare([span(1, 0, 10, { a: [0] })], 10)).toBe(1);
  });
});
