// @vitest-environment node
import { expect, test } from "vitest";

import { type Entry, rangeOf, rowsOf } from "./timelineLayout";

const entry = (kind: string, at: number, until: number | null, changes: Partial<Entry> = {}): Entry => ({
  kind, at: new Date(at * 1000).toISOString(), until: until === null ? null : new Date(until * 1000).toISOString(),
  attempt: 1, host: null, text: kind, detail: null, ...changes,
});

test("rows are the trial, then each attempt with its hosts in natural order", () => {
  const rows = rowsOf(
    [
      entry("launched", 5, 9, { attempt: 2 }), entry("checkpoint", 6, null, { host: "gpu10" }), entry("checkpoint", 6, null, { host: "gpu9" }),
      entry("launched", 1, 4), entry("submitted", 0, null, { attempt: null }),
    ],
    100, false,
  );
  expect(rows.map(({ label }) => label)).toEqual(["Trial", "Attempt 1", "gpu9", "gpu10", "Attempt 2"]);
});

test("entries that overlap have different levels", () => {
  const [row] = rowsOf([entry("waited", 0, 10), entry("checkpoint", 5, null), entry("launched", 10, 20)], 100, false);
  expect(row?.entries.map(({ level }) => level)).toEqual([0, 1, 0]);
  expect(row?.levels).toBe(2);
});

test("the run of a living trial lasts until now, the one of an ended trial without an end is a moment", () => {
  const entries = [entry("launched", 10, null), entry("checkpoint", 20, null)];
  expect(rowsOf(entries, 100, true)[0]?.entries.map(({ toS }) => toS)).toEqual([100, null]);
  expect(rowsOf(entries, 100, false)[0]?.entries.map(({ toS }) => toS)).toEqual([null, null]);
});

test("an end before its start and a time that cannot be read do not break the layout", () => {
  const rows = rowsOf([entry("launched", 10, 5), { ...entry("ended", 1, null), at: "yesterday" }], 100, false);
  expect(rows[0]?.entries).toHaveLength(1);
  expect(rows[0]?.entries[0]?.toS).toBeNull();
  expect(rangeOf(rows)).toEqual([10, 10]);
  expect(rangeOf([])).toBeNull();
});
