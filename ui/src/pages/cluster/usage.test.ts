import { describe, expect, it } from "vitest";

import { hoursText, largestDay, stacks, type Usage, usageCsv } from "./usage";

const row = (name: string, ...slot_hours: number[]) => ({ name, slot_hours, total: slot_hours.reduce((sum, one) => sum + one, 0) });
const usage = (rows: Usage["rows"], by: Usage["by"] = "dag"): Usage => ({ by, days: ["2026-03-09", "2026-03-10"], rows, more: 0 });

describe("slot hours by day", () => {
  it("give the largest names colours, and add the others up", () => {
    const parts = stacks(usage([...Array.from({ length: 9 }, (_, index) => row(`d${index}`, 10 - index, 1)), row("", 0.5, 2)]));
    expect(parts.map(({ name, color }) => [name, color]).slice(-2)).toEqual([["d6", 6], ["others", null]]);
    expect(parts.at(-1)?.hours).toEqual([3 + 2 + 0.5, 1 + 1 + 2]);
    expect(largestDay(parts, 2)).toBe(54.5);
    expect(largestDay([], 2)).toBe(0);
  });
  it("say what the hours without a name are", () => {
    expect(stacks(usage([row("", 1, 1)], "user"))[0]?.name).toContain("not started by a user of dtrain");
  });
  it("are no formulas in a spreadsheet", () => {
    expect(usageCsv(usage([row('=cmd|" /C calc"!A0', 1.23456, 2), row("a,b", 0, 1), row("", 1, 0)]))).toBe(
      `dag,total,2026-03-09,2026-03-10\r\n"'=cmd|"" /C calc""!A0",3.235,1.235,2\r\n"a,b",1,0,1\r\n(other),1,1,0\r\n`,
    );
  });
  it("have a decimal where they are few", () => {
    expect([0, 0.24, 9.96, 1234.5].map(hoursText)).toEqual(["0", "0.2", "10.0", "1,235"]);
  });
});
