import { describe, expect, it } from "vitest";

import { HEIGHT_MOST_PX, heightOf, LINE_PX, lineAt, scrollOf } from "./scroll";

describe("places of lines", () => {
  it("are a pixel of lines for each pixel of a short log", () => {
    expect(heightOf(100)).toBe(100 * LINE_PX);
    expect(lineAt(10 * LINE_PX, 100, 180)).toBeCloseTo(10);
    expect(scrollOf(10, 100, 180)).toBeCloseTo(10 * LINE_PX);
  });

  it("show everything of a log that fits", () => {
    expect(lineAt(50, 5, 180)).toBe(0);
    expect(scrollOf(3, 5, 180)).toBe(0);
    expect(lineAt(0, 0, 0)).toBe(0);
  });

  it("reach the first and the last line of ten million lines within the height that browsers allow", () => {
    const count = 10_000_000;
    const room = 600;
    expect(heightOf(count)).toBe(HEIGHT_MOST_PX);
    expect(lineAt(0, count, room)).toBe(0);
    expect(lineAt(HEIGHT_MOST_PX - room, count, room)).toBeCloseTo(count - room / LINE_PX);
    for (const line of [0, 1, 12_345, 5_000_000, 9_999_900]) expect(lineAt(scrollOf(line, count, room), count, room)).toBeCloseTo(line, 3);
  });

  it("end with the last line when a line beyond it is wanted", () => {
    expect(lineAt(scrollOf(99, 100, 180), 100, 180)).toBeCloseTo(90);
  });
});
