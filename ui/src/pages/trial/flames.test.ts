import { describe, expect, it } from "vitest";

import { bySelfTime, callersOf, flameBoxes } from "./flames";

const node = (name: string, parent: number | null, total_us: number, self_us = total_us) => ({ name, parent, total_us, self_us, calls: 1 });
const NODES = [node("step", null, 80, 20), node("forward", 0, 40, 0), node("mm", 1, 40), node("backward", 0, 20), node("save", null, 20)];

describe("flame graphs", () => {
  it("place calls below their callers, as wide as their share", () => {
    expect(flameBoxes(NODES, null)).toEqual([
      { index: 0, depth: 0, left: 0, width: 0.8 }, { index: 1, depth: 1, left: 0, width: 0.4 }, { index: 2, depth: 2, left: 0, width: 0.4 },
      { index: 3, depth: 1, left: 0.4, width: 0.2 }, { index: 4, depth: 0, left: 0.8, width: expect.closeTo(0.2) },
    ]);
  });
  it("give a chosen call and its callers the whole width", () => {
    expect(flameBoxes(NODES, 1)).toEqual([
      { index: 0, depth: 0, left: 0, width: 1 }, { index: 1, depth: 1, left: 0, width: 1 }, { index: 2, depth: 2, left: 0, width: 1 },
    ]);
    expect(callersOf(NODES, 2)).toEqual([0, 1, 2]);
  });
  it("draw no box outside of its caller, and none that is too narrow to be seen", () => {
    const boxes = flameBoxes([node("a", null, 100), node("b", 0, 90), node("c", 0, 90), node("d", 0, 0.001)], null);
    expect(boxes.map(({ left, width }) => [left, width])).toEqual([[0, 1], [0, 0.9], [0.9, expect.closeTo(0.1)]]);
    expect(flameBoxes([], null)).toEqual([]);
    expect(flameBoxes([node("a", null, 0)], null)).toEqual([]);
  });
  it("add the own time of a name up over all callers", () => {
    expect(bySelfTime([node("a", null, 10, 3), node("mm", 0, 5), node("mm", null, 4)], 1)).toEqual([{ name: "mm", self_us: 9, calls: 2 }]);
  });
});
