// @vitest-environment node
import { expect, test } from "vitest";

import { countText, differenceGroups } from "./differences";

const row = (subject: string, name: string, values: (string | null)[], is_unknown = false) => ({ subject, name, values, is_unknown });

test("hyperparameters come first, and values of the configuration are shown as they are written", () => {
  const rows = [row("configuration", "resources.slots_per_trial", ["1", "2"]), row("configuration", "hyperparameters.lr", ["0.1", '"0.1"'])];
  expect(differenceGroups({ trials: [1, 2], rows, same: [] })).toEqual([
    { subject: "configuration", rows: [{ name: "lr", values: ["0.1", '"0.1"'], isHparam: true, isUnknown: false }, { name: "resources.slots_per_trial", values: ["1", "2"], isHparam: false, isUnknown: false }] },
  ]);
});

test("an absent value and an unknown one are told apart", () => {
  const rows = [row("packages", "numpy", ["2.1", null]), row("data", "", [null, null], true), row("code", "", ["a".repeat(64), "none"])];
  expect(differenceGroups({ trials: [1, 2], rows, same: [] }).flatMap((group) => group.rows.map(({ name, values }) => [name, ...values]))).toEqual([
    ["packages numpy", "2.1", "–"],
    ["data", "unknown", "unknown"],
    ["code", "a".repeat(12), "none"],
  ]);
});

test("what is not known is counted beside the differences", () => {
  const rows = [row("code", "", ["a", "b"]), row("data", "", [null, null], true)];
  expect(countText({ trials: [1, 2], rows, same: [] })).toBe("1 difference, 1 unknown");
  expect(countText({ trials: [1, 2], rows: [], same: [] })).toBe("0 differences");
});
