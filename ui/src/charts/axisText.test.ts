// @vitest-environment node
import { expect, test } from "vitest";

import { labelledValues, labelTexts, offsetOf, shortNumber } from "./axisText";
import { scaleOf } from "./scales";

test("numbers of an axis are short", () => {
  expect([0, 0.25, 1500, 20_000, 1_250_000, 3e-4, -0.5, 1e20].map(shortNumber)).toEqual(["0", "0.25", "1,500", "20k", "1.25M", "3e-4", "-0.5", "1e20"]);
});

test("neighbouring labels of a narrow range differ", () => {
  const values = labelledValues(scaleOf([0.9131, 0.9134]), "number", 4);
  expect(new Set(labelTexts(values, "number")).size).toBe(values.length);
});

test("elapsed time is labelled at full minutes and hours", () => {
  const values = labelledValues(scaleOf([0, 7_200]), "elapsed", 5);
  expect(values).toEqual([0, 1_800, 3_600, 5_400, 7_200]);
  expect(labelTexts(values, "elapsed")).toEqual(["0", "30 min", "1:00 h", "1:30 h", "2:00 h"]);
  expect(labelTexts([0, 86_400], "elapsed")).toEqual(["0", "1 d"]);
  expect(labelTexts([0, 0.05], "elapsed")).toEqual(["0", "0.05 s"]);
});

test("a clock is labelled at full hours of the time zone, with the date at midnight", () => {
  const from = Date.UTC(2026, 0, 31, 20, 17) / 1000;
  const values = labelledValues(scaleOf([from, from + 6 * 3_600]), "clock", 6, "Asia/Kolkata");
  expect(labelTexts(values, "clock", "Asia/Kolkata")).toEqual(["02:00", "03:00", "04:00", "05:00", "06:00", "07:00"]);
  expect(labelTexts([Date.UTC(2026, 0, 31) / 1000, Date.UTC(2026, 0, 31, 6) / 1000], "clock", "UTC")).toEqual(["01-31", "06:00"]);
  expect(offsetOf("Asia/Kolkata", from)).toBe(19_800);
});

test("a clock far outside of the calendar has no labels instead of an exception", () => {
  expect(labelTexts([1e300], "clock")).toEqual([""]);
  expect(labelledValues(scaleOf([-1e300, 1e300]), "clock", 5)).toEqual(expect.any(Array));
});

test("labels of bytes are round in their unit", () => {
  expect(labelTexts(labelledValues(scaleOf([0, 3e9]), "bytes", 4), "bytes")).toEqual(["0 B", "1 GiB", "2 GiB"]);
  expect(labelTexts(labelledValues(scaleOf([0, 900]), "bytes", 4), "bytes")).toEqual(["0 B", "500 B"]);
});

test("shares and bytes have their units", () => {
  expect(labelTexts([0, 0.5], "share")).toEqual(["0 %", "50 %"]);
  expect(labelTexts([0, 2 ** 31], "bytes")).toEqual(["0 B", "2 GiB"]);
  expect(labelTexts([1536, 0.5], "bytes_per_s")).toEqual(["1.5 KiB/s", "0.5 B/s"]);
  expect(labelTexts([50], "percent")).toEqual(["50 %"]);
});
