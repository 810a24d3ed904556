// @vitest-environment node
import { expect, test } from "vitest";

import { indented, newLine } from "./indent";

test("a new line keeps the indent, and a colon adds a step", () => {
  expect(newLine("  lr: 1", 7, 7)).toEqual({ text: "  lr: 1\n  ", start: 10, end: 10 });
  expect(newLine("space:", 6, 6)).toEqual({ text: "space:\n  ", start: 9, end: 9 });
  expect(newLine("a\nb", 0, 1)).toEqual({ text: "\n\nb", start: 1, end: 1 });
});

test("selected lines move in and out together", () => {
  expect(indented("a\nb\nc", 0, 3, false)).toEqual({ text: "  a\n  b\nc", start: 2, end: 7 });
  expect(indented("  a\n b\nc", 2, 6, true)).toEqual({ text: "a\nb\nc", start: 0, end: 3 });
  expect(indented("ab", 1, 1, false)).toEqual({ text: "a  b", start: 3, end: 3 });
  expect(indented("ab", 1, 1, true)).toEqual({ text: "ab", start: 1, end: 1 });
});
