// @vitest-environment node
import { expect, test } from "vitest";

import { changedLines } from "./lineDiff";

const lines = (before: string, after: string) => [...changedLines(before, after)];

test("equal texts have no changed line", () => {
  expect(lines("a\nb", "a\nb")).toEqual([]);
  expect(lines("", "")).toEqual([]);
});

test("a changed value marks its line alone", () => {
  expect(lines("lr: 1\ndepth: 2\nseed: 3", "lr: 1\ndepth: 4\nseed: 3")).toEqual([1]);
});

test("an inserted line marks itself, and a removed line marks none", () => {
  expect(lines("a\nb\nc", "a\nx\nb\nc")).toEqual([1]);
  expect(lines("a\nb\nc", "a\nc")).toEqual([]);
});

test("lines between two changes stay unmarked", () => {
  expect(lines("a\nb\nc\nd\ne", "A\nb\nc\nd\nE")).toEqual([0, 4]);
});

test("a text of 50,000 other lines is compared at once", () => {
  const before = Array.from({ length: 50_000 }, (_, index) => `old ${index}`).join("\n");
  expect(changedLines(before, before.replaceAll("old", "new")).size).toBe(50_000);
});
