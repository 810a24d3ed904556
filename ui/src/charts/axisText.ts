/** Texts of axis labels. */
import { BYTE_UNITS } from "../format/numbers";
import { multiples, niceStep, type Scale, ticks } from "./scales";

/** Meaning of the numbers of an axis. Times are in seconds: since 1970 for a clock, since the start for elapsed time. */
export type AxisKind = "bytes" | "bytes_per_s" | "clock" | "elapsed" | "number" | "percent" | "share";

const MINUTE = 60;
const HOUR = 3_600;
const DAY = 86_400;

/** Steps between labels of time, in seconds. */
const STEPS_S = [
  1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR,
  12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY,
];

const stepOf = (span: number, most: number): number => {
  const rough = span / Math.max(1, most);
  if (rough < 1) return niceStep(span, most);
  return STEPS_S.find((step) => step >= rough) ?? niceStep(span, most);
};

/** Return the seconds by which the clock of a time zone is ahead of UTC at an instant. */
export const offsetOf = (zone: string, atS: number): number => {
  const at = new Date(Math.floor(atS) * 1000);
  if (Number.isNaN(at.getTime())) return 0;
  const parts = new Intl.DateTimeFormat("en-CA", {
    timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric",
  }).formatToParts(at);
  const part = (type: string) => Number(parts.find((item) => item.type === type)?.value ?? 0);
  return Date.UTC(part("year"), part("month") - 1, part("day"), part("hour"), part("minute"), part("second")) / 1000 - at.getTime() / 1000;
};

/** Return the values at which an axis has labels. A clock has them at full minutes, hours and days of the time zone. */
export const labelledValues = (scale: Scale, kind: AxisKind, most: number, zone = "UTC"): number[] => {
  if (!scale.log && (kind === "bytes" || kind === "bytes_per_s")) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, Math.abs(scale.min), Math.abs(scale.max))) / 10));
    const round = { ...scale, min: scale.min / unit, max: scale.max / unit };
    return ticks(round, most).map((value) => value * unit);
  }
  if (scale.log || (kind !== "clock" && kind !== "elapsed")) return ticks(scale, most);
  const step = stepOf(scale.max - scale.min, most);
  const offset = kind === "clock" ? offsetOf(zone, scale.min) : 0;
  return multiples(scale.min + offset, scale.max + offset, step).map((value) => value - offset);
};

const scaled = (value: number, units: readonly [number, string][]): string => {
  const size = Math.abs(value);
  const [least, unit] = units.find(([limit]) => size >= limit * (1 - 1e-9)) ?? [1, ""];
  return `${Number((value / Math.max(1, least)).toPrecision(3))}${unit}`;
};

const COUNTS: readonly [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];

/** Return a short text of one number: 0.25, 1,500, 20k, 3e-4. */
export const shortNumber = (value: number): string => {
  if (!Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  if (size >= 1e15) return value.toExponential(2).replace(/\.?0+e\+/, "e");
  if (size >= 1e4) {
    const unit = COUNTS.find(([least]) => size >= least) ?? [1e3, "k"];
    const factor = unit[1] === "k" ? 1e3 : unit[0];
    return `${Number((value / factor).toPrecision(6))}${unit[1]}`;
  }
  return Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 6 });
};

const BYTES: readonly [number, string][] = BYTE_UNITS.map((unit, power): [number, string] => [power === 0 ? 0 : 1024 ** power, ` ${unit}`]).reverse();

const two = (value: number): string => String(value).padStart(2, "0");

const elapsedText = (value: number, step: number): string => {
  if (value === 0) return "0";
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (step < 1) return `${sign}${Number(size.toPrecision(6))} s`;
  const whole = Math.round(size);
  if (step >= DAY) return `${sign}${Number((whole / DAY).toPrecision(4))} d`;
  const [hours, minutes, seconds] = [Math.floor(whole / HOUR), Math.floor(whole / MINUTE) % 60, whole % 60];
  if (hours > 0) return step >= HOUR ? `${sign}${hours} h` : `${sign}${hours}:${two(minutes)} h`;
  if (step >= MINUTE) return `${sign}${minutes} min`;
  return minutes > 0 ? `${sign}${minutes}:${two(seconds)} min` : `${sign}${seconds} s`;
};

const clockText = (value: number, step: number, zone: string): string => {
  const local = new Date((value + offsetOf(zone, value)) * 1000);
  if (Number.isNaN(local.getTime())) return "";
  const date = `${two(local.getUTCMonth() + 1)}-${two(local.getUTCDate())}`;
  if (step >= 30 * DAY) return `${local.getUTCFullYear()}-${two(local.getUTCMonth() + 1)}`;
  if (step >= DAY) return date;
  const time = `${two(local.getUTCHours())}:${two(local.getUTCMinutes())}`;
  if (time === "00:00" && step >= MINUTE) return date;
  return step < MINUTE ? `${time}:${two(local.getUTCSeconds())}` : time;
};

/** Return the texts of the labels of one axis. */
export const labelTexts = (values: readonly number[], kind: AxisKind, zone = "UTC"): string[] => {
  const step = values.length > 1 ? Math.abs((values[1] ?? 0) - (values[0] ?? 0)) : 1;
  return values.map((value) => {
    if (kind === "share") return `${Number((100 * value).toPrecision(4))} %`;
    if (kind === "percent") return `${Number(value.toPrecision(4))} %`;
    if (kind === "bytes") return scaled(value, BYTES);
    if (kind === "bytes_per_s") return `${scaled(value, BYTES)}/s`;
    if (kind === "elapsed") return elapsedText(value, step);
    if (kind === "clock") return clockText(value, step, zone);
    return shortNumber(value);
  });
};
