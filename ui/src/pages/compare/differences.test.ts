// @vitest-environment node
import { expect, test } from "vitest";

import { type ComparedTrial } from "../../api/charts";
import { differenceRows } from "./differences";

const trial = (hparams: Record<string, unknown>) => ({ hparams }) as ComparedTrial;

test("only values that differ are shown, hyperparameters first", () => {
  const rows = differenceRows({
    trials: [trial({ lr: 0.1, depth: 2, kind: null }), trial({ lr: 0.01, depth: 2 })],
    differences: [{ path: "resources.slots_per_trial", values: [1, 2] }, { path: "hyperparameters.lr", values: [0.1, 0.01] }],
  });
  expect(rows).toEqual([{ path: "lr", values: ["0.1", "0.01"], isHparam: true }, { path: "resources.slots_per_trial", values: ["1", "2"], isHparam: false }]);
});

test("a value that one trial lacks is a difference", () => {
  expect(differenceRows({ trials: [trial({ a: 1 }), trial({})], differences: [] })).toEqual([{ path: "a", values: ["1", "–"], isHparam: true }]);
});

test("a hyperparameter with the name of an object's method is compared by its values", () => {
  expect(differenceRows({ trials: [trial({ constructor: 1 }), trial({})], differences: [] })[0]?.values).toEqual(["1", "–"]);
});
