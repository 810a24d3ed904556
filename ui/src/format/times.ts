import { NONE } from "./numbers";

/** Return a duration in seconds in two units: 3 d 4 h, 2 h 5 min, 1 min 20 s, 8.5 s, 20 ms. */
export const duration = (seconds: number | null | undefined): string => {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  const sign = seconds < 0 ? "−" : "";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.000_999_5) return `${sign}${size < 9.95e-6 ? Number((size * 1e6).toPrecision(2)) : Math.round(size * 1e6)} µs`;
  if (size < 1) return `${sign}${Math.round(size * 1000)} ms`;
  if (size < 9.95) return `${sign}${Number(size.toFixed(1))} s`;
  const whole = Math.round(size);
  const parts: [number, string][] = [
    [Math.floor(whole / 86_400), "d"],
    [Math.floor(whole / 3_600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  const shown = parts.slice(first, first + 2).filter(([value]) => value > 0);
  return sign + shown.map(([value, unit]) => `${value} ${unit}`).join(" ");
};

/** Return the instant of a time of the API in milliseconds, or null for an absent or malformed one. */
export const instant = (at: string | null | undefined): number | null => {
  if (at === null || at === undefined) return null;
  const time = Date.parse(at);
  return Number.isNaN(time) ? null : time;
};

const formats = new Map<string, Intl.DateTimeFormat>();

const formatOf = (zone: string): Intl.DateTimeFormat => {
  let format = formats.get(zone);
  if (format === undefined) {
    const two = "2-digit" as const;
    format = new Intl.DateTimeFormat("en-CA", {
      timeZone: zone, year: "numeric", month: two, day: two, hour: two, minute: two, second: two, hourCycle: "h23",
    });
    formats.set(zone, format);
  }
  return format;
};

/** Return a time as the Airflow UI writes it: 2026-01-31, 14:05:09. */
export const time = (at: string | number | null | undefined, zone: string): string => {
  const instant_ = typeof at === "number" ? at : instant(at);
  if (instant_ === null || !Number.isFinite(instant_)) return NONE;
  const parts = Object.fromEntries(formatOf(zone).formatToParts(instant_).map(({ type, value }) => [type, value]));
  return `${parts.year}-${parts.month}-${parts.day}, ${parts.hour}:${parts.minute}:${parts.second}`;
};

/** Return how far a time is from now: 5 min ago, in 2 h. Clocks of two machines differ, so a second counts as now. */
export const relative = (at: string | null | undefined, nowMs: number): string => {
  const instant_ = instant(at);
  if (instant_ === null) return NONE;
  const seconds = (instant_ - nowMs) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  // Seconds beside minutes would only flicker.
  const size = Math.abs(seconds);
  const text = duration(size < 60 ? Math.round(size) : 60 * Math.round(size / 60));
  return seconds < 0 ? `${text} ago` : `in ${text}`;
};
