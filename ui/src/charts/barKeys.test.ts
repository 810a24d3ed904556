import { describe, expect, it } from "vitest";

import { barByKey } from "./barKeys";
import { type Bar } from "./slotTimeline";

const bar = (span: string, row: number, fromS: number, toS: number): Bar<string> => ({ span, row, rows: 1, fromS, startS: fromS, toS });

const bars = [bar("c", 2, 0, 10), bar("b", 0, 5, 9), bar("a", 0, 0, 4), bar("d", 2, 20, 30)];

const walk = (keys: readonly string[]): string[] => {
  let at: Bar<string> | null = null;
  return keys.map((key) => {
    at = barByKey(key, bars, at);
    return at?.span ?? "";
  });
};

describe("the keys of a timeline", () => {
  it("go along a row and on to the next one, and stay at the ends", () => {
    expect(walk(["ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"])).toEqual(["a", "b", "c", "d", "d"]);
    expect(walk(["ArrowLeft", "ArrowLeft", "Home", "ArrowLeft", "End"])).toEqual(["d", "c", "a", "a", "d"]);
  });

  it("go to the bar of another row that is nearest in time", () => {
    expect(walk(["End", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowDown"])).toEqual(["d", "b", "b", "c", "c"]);
    expect(walk(["ArrowDown"])).toEqual(["a"]);
  });

  it("find a bar again that has grown since, and do nothing without bars or for other keys", () => {
    expect(barByKey("ArrowRight", [bar("a", 0, 0, 9), bar("b", 1, 0, 1)], bar("a", 0, 0, 4))?.span).toBe("b");
    expect([barByKey("x", bars, null), barByKey("ArrowRight", [], null), barByKey("Home", [], null)]).toEqual([null, null, null]);
  });
});
