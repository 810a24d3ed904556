// @vitest-environment node
import { expect, test } from "vitest";

import { matching } from "./matching";

test("a name matches if it has all words, in any order and case", () => {
  expect(matching(["val/loss", "val/accuracy", "LOSS val"], "loss VAL", 10)).toEqual({ shown: ["val/loss", "LOSS val"], more: 0 });
});

test("10,000 names are searched, and the list says how many are left", () => {
  const names = Array.from({ length: 10_000 }, (_, index) => `layer.${index}/norm`);
  expect(matching(names, "", 100)).toMatchObject({ more: 9_900 });
  expect(matching(names, "9999", 100)).toEqual({ shown: ["layer.9999/norm"], more: 0 });
  expect(matching(names, "[(", 100)).toEqual({ shown: [], more: 0 });
});
