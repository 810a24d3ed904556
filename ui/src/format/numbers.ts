/** A number as the API sends it: JSON has no NaN and no infinity. */
export type Numeric = number | "nan" | "inf" | "-inf" | null | undefined;

const SPECIAL: Record<string, string> = { "-inf": "−∞", inf: "∞", nan: "NaN" };

/** Shown where a value is absent. */
export const NONE = "–";

/** Return a number with at most so many significant digits: 0.9137, 12,345, 3e-4. */
export const number = (value: Numeric, digits = 4): string => {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "string") return SPECIAL[value] ?? value;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e9) return value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
};

/** Return a whole number with separators: 12,345. */
export const count = (value: number | null | undefined): string =>
  value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en-US");

/** Return a share between 0 and 1 as a percentage. */
export const percent = (value: number | null | undefined, digits = 0): string =>
  value === null || value === undefined || !Number.isFinite(value) ? NONE : `${(100 * value).toFixed(digits)} %`;

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Return a number of bytes: 1.2 GB. */
export const bytes = (value: number | null | undefined): string => {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const step = Math.min(SIZES.length - 1, value < 1000 ? 0 : Math.floor(Math.log10(value) / 3));
  const scaled = value / 1000 ** step;
  return `${step === 0 || scaled >= 100 ? Math.round(scaled) : scaled.toFixed(1)} ${SIZES[step] ?? ""}`;
};

/** Return the number with its noun: 1 slot, 8 slots. */
export const plural = (value: number, noun: string, many = `${noun}s`): string => `${count(value)} ${value === 1 ? noun : many}`;
