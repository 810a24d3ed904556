import { describe, expect, it } from "vitest";

import { placed } from "./image";

const named = (name: string) => ({ name, look: { color: 0, dash: 0 } });

/** Each character is 10 pixels wide. */
const textWidth = (text: string) => text.length * 10;

describe("the legend of a chart in a file", () => {
  it("has as many series in a row as fit into the width", () => {
    const { places, height } = placed([named("aaaa"), named("bbbb"), named("cccc")], 160, textWidth);
    expect(places.map(({ left, top }) => [left, top])).toEqual([[0, 0], [82, 0], [0, 18]]);
    expect(height).toBe(36);
  });

  it("shortens a name that is longer than a row, and leaves out what would hide the chart", () => {
    const { places } = placed(Array.from({ length: 500 }, () => named("x".repeat(5_000))), 300, textWidth);
    expect(places).toHaveLength(40);
    expect(places[0]?.item.name).toHaveLength(60);
    expect(new Set(places.map(({ left }) => left))).toEqual(new Set([0]));
  });

  it("takes no room without series", () => {
    expect(placed([], 300, textWidth)).toEqual({ places: [], height: 0 });
  });
});
