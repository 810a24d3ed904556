// @vitest-environment node
import { expect, test } from "vitest";

import { stacked } from "./stack";

test("each series begins where the one below it ends", () => {
  expect(stacked([[0.1, 0.2], [0.5, 0.5]], 2)).toEqual([[0.1, 0.2], [0.6, 0.7]]);
});

test("an absent or negative value adds nothing, and a point without values is a gap", () => {
  expect(stacked([[1, null, null], [-1, 2, null]], 3)).toEqual([[1, 0, null], [1, 2, null]]);
});
