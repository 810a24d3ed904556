// @vitest-environment node
import { expect, test } from "vitest";

import { ABSENT, dimensionOf, labelsOf, suitsLog, textAt, textOf } from "./dimensions";

test("numbers have places on a linear or log axis", () => {
  expect(Array.from(dimensionOf("lr", [1e-4, 1e-2, 1], true).places)).toEqual([0, 0.5, 1]);
  expect(Array.from(dimensionOf("n", [0, 5, 10], false).places)).toEqual([0, 0.5, 1]);
});

test("absent values, NaN and values below zero on a log axis are below the axis", () => {
  const dimension = dimensionOf("lr", [null, undefined, Number.NaN, -1, 1, 10], true);
  expect(Array.from(dimension.places).map((place) => place < 0)).toEqual([true, true, true, true, false, false]);
  expect(dimension.absent).toBe(4);
  expect(dimension.places[0]).toBeCloseTo(ABSENT);
});

test("texts, booleans and mixed values have an axis of categories, numbers among them in order", () => {
  const dimension = dimensionOf("x", ["10", "9", true, null], false);
  expect(dimension.scale).toBeNull();
  expect(dimensionOf("b", ["10", "9", "100"], false).categories).toEqual(['"9"', '"10"', '"100"']);
  expect(dimension.places[3]).toBeCloseTo(ABSENT);
});

test("a categorical of numbers has its choices in their order, also those that no trial has", () => {
  const dimension = dimensionOf("batch", [64, 32], false, [32, 64, 128]);
  expect(dimension.categories).toEqual(["32", "64", "128"]);
  expect(Array.from(dimension.places)).toEqual([0.5, expect.closeTo(1 / 6)]);
});

test("one value and no value have an axis", () => {
  expect(dimensionOf("x", [3, 3], false).places[0]).toBeCloseTo(0.5);
  expect(dimensionOf("x", [], false).places).toHaveLength(0);
  expect(labelsOf(dimensionOf("x", [null], false), 4).length).toBeGreaterThan(0);
});

test("a log axis is proposed for positive values that span orders of magnitude", () => {
  expect(suitsLog([1e-5, 1e-2, null])).toBe(true);
  expect(suitsLog([1, 20])).toBe(false);
  expect(suitsLog([0, 1e6])).toBe(false);
  expect(suitsLog(["adam", 1e6])).toBe(false);
});

test("labels and places have texts", () => {
  const kinds = dimensionOf("optimizer", ["adam", "sgd"], false);
  expect(labelsOf(kinds, 4)).toEqual([{ place: 0.25, text: "adam" }, { place: 0.75, text: "sgd" }]);
  expect(textAt(kinds, 0.9)).toBe("sgd");
  expect(textAt(dimensionOf("n", [0, 10], false), 0.5)).toBe("5");
  expect(textOf({ a: [1] })).toBe('{"a":[1]}');
});

test("values of a choice that differ have different texts", () => {
  const values = [true, "true", 1, "1", "null", "adam", '"adam"', [1], "[1]", "", "NaN"];
  expect(values.map(textOf)).toEqual(["true", '"true"', "1", '"1"', '"null"', "adam", '"\\"adam\\""', "[1]", '"[1]"', "", "NaN"]);
  expect(dimensionOf("mixed", [1, "1", true, "true"], false).categories.length).toBe(4);
});
