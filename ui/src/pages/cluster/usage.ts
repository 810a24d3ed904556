/** Slot hours by day: bars of the chart, and the file for spreadsheets. */
import { type components } from "../../api/schema";
import { csv } from "../../charts/csv";

export type Usage = components["schemas"]["Usage"];
export type UsageRow = components["schemas"]["UsageRow"];

export const OWNERS = [
  { value: "pool", text: "Pool" },
  { value: "user", text: "User" },
  { value: "dag", text: "DAG" },
] as const;

export const SPANS = [
  { value: "7", text: "7 days" },
  { value: "14", text: "14 days" },
  { value: "31", text: "31 days" },
  { value: "92", text: "92 days" },
] as const;

/** Names that have a colour of their own in the chart. The others are one part of each bar. */
const COLORED = 7;

export interface Stack {
  readonly name: string;
  /** Index of its colour, or null for all other names together. */
  readonly color: number | null;
  readonly hours: readonly number[];
}

/** Return what the hours of a row without a name are. */
export const otherWords = (by: Usage["by"]): string =>
  by === "user" ? "not started by a user of dtrain, or not readable for you" : by === "dag" ? "DAGs that you may not read, and further ones" : "other";

/** Return the parts of the bars, the largest one first. */
export const stacks = ({ rows, by, days }: Usage): Stack[] => {
  const named = rows.filter(({ name }) => name !== "").slice(0, COLORED);
  const rest = rows.filter((row) => !named.includes(row));
  const shown: Stack[] = named.map(({ name, slot_hours }, color) => ({ name, color, hours: slot_hours }));
  if (rest.length > 0) {
    const isOne = rest.length === 1 && rest[0]?.name === "";
    shown.push({ name: isOne ? otherWords(by) : "others", color: null, hours: days.map((_, day) => rest.reduce((sum, { slot_hours }) => sum + (slot_hours[day] ?? 0), 0)) });
  }
  return shown;
};

/** Return the largest sum of a day. */
export const largestDay = (parts: readonly Stack[], days: number): number => Math.max(0, ...Array.from({ length: days }, (_, day) => parts.reduce((sum, { hours }) => sum + (hours[day] ?? 0), 0)));

export const hoursText = (hours: number): string => (hours === 0 ? "0" : hours < 10 ? hours.toFixed(1) : Math.round(hours).toLocaleString("en-US"));

/** Return the hours as CSV, with three decimals. */
export const usageCsv = ({ by, days, rows }: Usage): string => {
  const rounded = (hours: number) => Math.round(hours * 1000) / 1000;
  return csv([[by, "total", ...days], ...rows.map(({ name, total, slot_hours }) => [name === "" ? "(other)" : name, rounded(total), ...slot_hours.map(rounded)])]);
};
