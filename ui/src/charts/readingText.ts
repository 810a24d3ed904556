/** Texts of values under the pointer. */
import { count, number } from "../format/numbers";
import { duration, time } from "../format/times";
import { type AxisKind, labelTexts } from "./axisText";

/** Return an exact text of a value of an axis. */
export const valueText = (value: number, kind: AxisKind, zone: string): string => {
  if (kind === "elapsed") return duration(value);
  if (kind === "clock") return time(value * 1000, zone);
  if (kind !== "number") return labelTexts([value], kind)[0] ?? "";
  return Number.isInteger(value) && Math.abs(value) < 1e9 ? count(value) : number(value, 5);
};
