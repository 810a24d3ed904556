// @vitest-environment node
import { expect, test } from "vitest";

import { type Hyperparameters } from "../../api/charts";
import { axesOf, bestOf, bestSoFar, isLog, usualAxes, valuesOf } from "./space";

const data: Hyperparameters = {
  names: [
    { name: "lr", kind: "float", log: true, values: null }, { name: "depth", kind: "int", log: false, values: null }, { name: "seed", kind: "const", log: false, values: [1] },
  ],
  trial_id: [10, 11, 12], number: [2, 0, 1], state: ["completed", "completed", "errored"], metric: [0.3, 0.5, null],
  columns: { lr: [1e-4, 1e-2, 1], depth: [1, 2, null] }, importance: [{ name: "depth", value: 0.9 }, { name: "lr", value: 0.1 }], importance_note: "", is_importance_pending: false,
};

test("axes are in the order of importance, without constants", () => {
  expect(usualAxes(data)).toEqual(["depth", "lr"]);
});

test("an axis is logarithmic as in the search space, until the user changes it", () => {
  expect(isLog(data, "lr", [])).toBe(true);
  expect(isLog(data, "lr", ["lr"])).toBe(false);
  expect(isLog(data, "constructor", [])).toBe(false);
});

test("axes of an older link that the data lacks are left out", () => {
  expect(axesOf(data, ["lr", "gone", "constructor"], []).map(({ name }) => name)).toEqual(["lr"]);
  expect(valuesOf(data, 2, ["lr", "depth", "toString"])).toEqual([{ name: "lr", text: "1" }, { name: "depth", text: "–" }]);
});

test("the best metric so far never gets worse, in the order of the trials' numbers", () => {
  expect(bestSoFar([2, 0, 1], [0.3, 0.5, 0.9], true)).toEqual([{ number: 0, best: 0.5 }, { number: 1, best: 0.5 }, { number: 2, best: 0.3 }]);
  expect(bestSoFar([0, 1], [null, Number.NaN], false)).toEqual([]);
  expect(bestSoFar([0, 1, 2], [null, 1, 3], false)).toEqual([{ number: 1, best: 1 }, { number: 2, best: 3 }]);
});

test("selected trials are listed best first", () => {
  expect(bestOf([0.3, 0.5, null, 0.1], Uint8Array.from([1, 1, 1, 0]), true, 10)).toEqual([0, 1, 2]);
  expect(bestOf([0.3, 0.5, null, 0.1], Uint8Array.from([1, 1, 1, 0]), false, 1)).toEqual([1]);
});
