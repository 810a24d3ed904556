/** A number as the API sends it: JSON has no NaN and no infinity. */
export type Numeric = number | "nan" | "inf" | "-inf" | null | undefined;

const SPECIAL: Record<string, string> = { "-inf": "−∞", inf: "∞", nan: "NaN" };

/** Shown where a value is absent. */
export const NONE = "–";

/** Shown for a value that is NaN or infinite, where the answer of the API does not tell which. */
export const NOT_FINITE = "NaN/∞";

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

const plain = (text: string): number | null => (/^-?[\d,]+(\.\d+)?$/.test(text) ? (text.split(".")[1] ?? "").length : null);

/**
 * Return numbers that stand below each other, with decimals in one column: 0.9100 and 0.8125. They have as many decimals as
 * the largest one has within so many significant digits, or as the smallest one needs to show two.
 */
export const numbers = (values: readonly Numeric[], digits = 4): string[] => {
  const texts = values.map((value) => number(value, digits));
  const needed = texts.map(plain);
  const sizes = values.filter((value, index): value is number => typeof value === "number" && value !== 0 && needed[index] !== null).map(Math.abs);
  const places = (size: number, significant: number) => significant - 1 - Math.floor(Math.log10(size));
  const wanted = sizes.length === 0 ? 0 : Math.max(places(Math.max(...sizes), digits), places(Math.min(...sizes), 2));
  const decimals = Math.max(0, Math.min(wanted, ...[Math.max(0, ...needed.filter((one) => one !== null))]));
  return values.map((value, index) =>
    needed[index] === null || typeof value !== "number" ? (texts[index] ?? NONE) : value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }),
  );
};

/** Return a whole number with separators: 12,345. */
export const count = (value: number | null | undefined): string =>
  value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en-US");

/** Return a share between 0 and 1 as a percentage. */
export const percent = (value: number | null | undefined, digits = 0): string =>
  value === null || value === undefined || !Number.isFinite(value) ? NONE : `${(100 * value).toFixed(digits)} %`;

/** Units of bytes, each 1024 of the one before. */
export const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

/** Return a number of bytes: 1.2 GiB. Both programs have the same function: `byte_size` in `core/byte_size.py`. */
export const bytes = (value: number | null | undefined): string => {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  let scaled = Math.abs(value);
  for (const unit of BYTE_UNITS) {
    // Half up, and rounded before the unit is chosen: 1023.96 KiB are 1.0 MiB.
    const digits = unit === "B" ? 1 : 10;
    const shown = Math.floor(scaled * digits + 0.5) / digits;
    if (shown < 1024 || unit === BYTE_UNITS.at(-1)) return `${value < 0 && shown > 0 ? "-" : ""}${shown.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    scaled /= 1024;
  }
  return NONE;
};

/** Return the number with its noun: 1 slot, 8 slots. */
export const plural = (value: number, noun: string, many = `${noun}s`): string => `${count(value)} ${value === 1 ? noun : many}`;
