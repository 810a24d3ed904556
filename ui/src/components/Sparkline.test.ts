// @vitest-environment node
import { expect, test } from "vitest";

import { lone } from "./Sparkline";

test("a minute between two gaps is a dot of its own", () => {
  expect(lone([null, 50, null, 50, 50], 100, 40, 22)).toBe("M10.0 11.0h0.1");
  expect(lone([50, 50], 100, 40, 22)).toBe("");
});
