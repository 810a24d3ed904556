import { describe, expect, it } from "vitest";

import { type LogLine } from "../../../api/logs";
import { type TimelineEntry } from "../../../api/trial";
import { asTime, marksBetween, ranksOf, searchOf, USUAL_LOG } from "./query";

const line = (at: string | null): LogLine => ({ number: 0, offset: 0, at, level: null, text: "", chars: 0 });
const entry = (at: string, kind: TimelineEntry["kind"]): TimelineEntry => ({ at, until: null, kind, attempt: 1, host: null, text: kind, detail: {} });

describe("the search of an address", () => {
  it("is none without a property", () => {
    expect(searchOf(USUAL_LOG)).toBeNull();
    expect(searchOf({ ...USUAL_LOG, regex: true, level: "loud", since: "yesterday" })).toBeNull();
  });

  it("has each property", () => {
    const view = { ...USUAL_LOG, grep: "a+", regex: true, level: "warning", since: "2026-01-31T14:05Z" };
    expect(searchOf(view)).toEqual({ text: "a+", regex: true, level: "warning", since: "2026-01-31T14:05:00.000Z", until: null });
  });

  it("reads at most four ranks, and rank 0 if there is none", () => {
    expect(ranksOf(["3", "3", "x", "-1", "7", "1", "2", "9"])).toEqual([3, 7, 1, 2]);
    expect(ranksOf(["<b>"])).toEqual([0]);
  });

  it("reads no time from other texts", () => {
    expect(asTime("<img src=x>")).toBeNull();
  });
});

describe("marks beside a line", () => {
  const entries = [entry("2026-01-01T00:00:10Z", "rung"), entry("2026-01-01T00:00:20Z", "waited"), entry("2026-01-01T00:00:30Z", "checkpoint")];

  it("are the entries since the line before it", () => {
    const kinds = (from: string | null, to: string | null) => marksBetween(entries, line(from), line(to)).map(({ kind }) => kind);
    expect(kinds("2026-01-01T00:00:09Z", "2026-01-01T00:00:10Z")).toEqual(["rung"]);
    expect(kinds("2026-01-01T00:00:10Z", "2026-01-01T00:00:29Z")).toEqual([]);
    expect(kinds("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")).toEqual(["rung", "checkpoint"]);
    expect(kinds(null, "2026-01-01T00:01:00Z")).toEqual([]);
    expect(kinds("2026-01-01T00:00:00Z", null)).toEqual([]);
  });
});
