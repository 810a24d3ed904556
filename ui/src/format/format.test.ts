import { describe, expect, it } from "vitest";

import byteSizes from "./byteSizes.json";
import { bytes, number, numbers, percent, plural } from "./numbers";
import { duration, relative, time } from "./times";

describe("numbers", () => {
  it("have at most four significant digits", () => {
    expect([0.91374, 12345.6, 0.000_312, 1e12, 100, 1.5, 0, -0.25].map((value) => number(value))).toEqual(
      ["0.9137", "12,346", "3.12e-4", "1e12", "100", "1.5", "0", "-0.25"],
    );
  });

  it("that are not finite have a symbol, whether JSON or JavaScript names them", () => {
    expect(["nan", "inf", "-inf", Number.NaN, Number.NEGATIVE_INFINITY, null].map((value) => number(value as number))).toEqual(
      ["NaN", "∞", "−∞", "NaN", "−∞", "–"],
    );
  });

  it("that stand below each other have the same decimals, as many as tell them apart", () => {
    expect(numbers([0.91, 0.8125, 0])).toEqual(["0.9100", "0.8125", "0.0000"]);
    expect(numbers([1234.5, 7.25])).toEqual(["1,234.5", "7.3"]);
    expect(numbers([123.456, 0.0625])).toEqual(["123.456", "0.063"]);
    expect(numbers([0.5, null, "nan", 3e-5])).toEqual(["0.5", "–", "NaN", "3e-5"]);
    expect([numbers([2, 10]), numbers([])]).toEqual([["2", "10"], []]);
  });

  it("of bytes are those of both programs, which read the same list", () => {
    expect(byteSizes.map(([count]) => [count, bytes(count as number)])).toEqual(byteSizes);
  });

  it("of bytes, shares and things have units", () => {
    expect([bytes(0), bytes(1_234), bytes(1.2e9), bytes(null), percent(0.256), percent(Number.NaN)]).toEqual(
      ["0 B", "1.2 KiB", "1.1 GiB", "–", "26 %", "–"],
    );
    expect([plural(1, "slot"), plural(8, "slot"), plural(2, "entry", "entries")]).toEqual(["1 slot", "8 slots", "2 entries"]);
  });
});

describe("durations", () => {
  it("have the two largest units", () => {
    expect([0, 0.02, 8.46, 80, 3_600, 7_500, 273_600, -90].map(duration)).toEqual(
      ["0 s", "20 ms", "8.5 s", "1 min 20 s", "1 h", "2 h 5 min", "3 d 4 h", "−1 min 30 s"],
    );
  });

  it("never show 60 seconds or 24 hours", () => {
    expect([9.99, 59.6, 3_599.7, 86_399.9].map(duration)).toEqual(["10 s", "1 min", "1 h", "1 d"]);
  });
});

describe("times", () => {
  it("are written in the zone of the Airflow UI", () => {
    expect(time("2026-01-31T23:05:09Z", "UTC")).toBe("2026-01-31, 23:05:09");
    expect(time("2026-01-31T23:05:09Z", "Asia/Tokyo")).toBe("2026-02-01, 08:05:09");
    expect(time("2026-01-31T00:00:09Z", "UTC")).toBe("2026-01-31, 00:00:09");
  });

  it("that are absent or malformed are a dash", () => {
    expect([time(null, "UTC"), time("yesterday", "UTC"), relative("", 0)]).toEqual(["–", "–", "–"]);
  });

  it("relative to now allow for clocks that differ by a second", () => {
    const now = Date.parse("2026-01-31T12:00:00Z");
    expect(["2026-01-31T12:00:01Z", "2026-01-31T11:55:00Z", "2026-01-31T14:00:00Z"].map((at) => relative(at, now))).toEqual(
      ["now", "5 min ago", "in 2 h"],
    );
  });
});
