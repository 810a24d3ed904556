/** Texts of values under the pointer. */
import { count, number, numbers } from "../format/numbers";
import { duration, time } from "../format/times";
import { type AxisKind, labelTexts } from "./axisText";

/** Return an exact text of a value of an axis. */
export const valueText = (value: number, kind: AxisKind, zone: string): string => {
  if (kind === "elapsed") return duration(value);
  if (kind === "clock") return time(value * 1000, zone);
  if (kind !== "number") return labelTexts([value], kind)[0] ?? "";
  return Number.isInteger(value) && Math.abs(value) < 1e9 ? count(value) : number(value, 5);
};

/** Return exact texts of values of one axis that stand below each other: their decimals are in one column. */
export const valueTexts = (values: readonly number[], kind: AxisKind, zone: string): string[] => {
  if (kind === "percent") return numbers(values).map((text) => `${text} %`);
  if (kind === "share") return numbers(values.map((value) => 100 * value)).map((text) => `${text} %`);
  return kind === "number" && !values.every(Number.isInteger) ? numbers(values, 5) : values.map((value) => valueText(value, kind, zone));
};
