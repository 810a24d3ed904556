/** Mapping between values and places on an axis, from 0 to 1. */
export interface Scale {
  readonly min: number;
  readonly max: number;
  readonly log: boolean;
}

/** Numbers of one axis. Null, NaN and infinite values have no place on it. */
export type Column = ArrayLike<number | null>;

/** Smallest range of a log axis as a ratio, so that equal values get an axis. */
const LOG_PAD = 2;

/** Return the smallest and the largest finite value, or null without any. A log axis counts positive values only. */
export const extent = (columns: Iterable<Column>, log = false): [number, number] | null => {
  let min = Infinity;
  let max = -Infinity;
  for (const column of columns) {
    for (let index = 0; index < column.length; index += 1) {
      const value = column[index];
      if (value === null || value === undefined || !Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < min) min = value;
      if (value > max) max = value;
    }
  }
  return min <= max ? [min, max] : null;
};

/**
 * Return the scale of a range of values. Equal values get a range around them, no values get the range from 0 to 1.
 *
 * @param pad share of the range that stays free at both ends
 */
export const scaleOf = (range: readonly [number, number] | null, log = false, pad = 0): Scale => {
  if (range === null) return log ? { min: 0.1, max: 1, log } : { min: 0, max: 1, log };
  const [low, high] = range;
  if (log) {
    if (low === high) return { min: low / LOG_PAD, max: high * LOG_PAD, log };
    const free = (high / low) ** pad;
    return { min: low / free, max: high * free, log };
  }
  if (low === high) {
    const around = low === 0 ? 1 : Math.abs(low) / 2;
    return { min: low - around, max: high + around, log };
  }
  // Half of each end, because the difference of two large values may be infinite.
  const free = (high / 2 - low / 2) * 2 * pad;
  const padded = { min: low - free, max: high + free, log };
  return Number.isFinite(padded.max - padded.min) ? padded : { min: low / 2, max: high / 2, log };
};

/** Return the place of a value on the axis, or NaN for a value that has none. Values outside the range are below 0 or above 1. */
export const placeOf = (scale: Scale, value: number | null | undefined): number => {
  if (value === null || value === undefined || !Number.isFinite(value)) return Number.NaN;
  if (!scale.log) return (value - scale.min) / (scale.max - scale.min);
  return value <= 0 ? Number.NaN : Math.log(value / scale.min) / Math.log(scale.max / scale.min);
};

/** Return the value at a place of the axis. */
export const valueAt = (scale: Scale, place: number): number =>
  scale.log ? scale.min * (scale.max / scale.min) ** place : scale.min + (scale.max - scale.min) * place;

/** Return the largest of 1, 2, 5 times a power of ten that gives no more than `most` steps in a span. */
export const niceStep = (span: number, most: number): number => {
  const rough = span / Math.max(1, most);
  if (!(rough > 0) || !Number.isFinite(rough)) return 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((item) => item * power >= rough * (1 - 1e-9)) ?? 10;
  return factor * power;
};

/** Return multiples of a step within a range. */
export const multiples = (min: number, max: number, step: number): number[] => {
  const first = Math.ceil(min / step - 1e-9);
  const last = Math.floor(max / step + 1e-9);
  if (!Number.isFinite(first) || !Number.isFinite(last) || last - first > 1_000) return [];
  // Rounded to the step's digits: 0.1 + 0.2 is shown as 0.3.
  const digits = Math.max(0, Math.min(15, 3 - Math.floor(Math.log10(step))));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => {
    const value = (first + index) * step;
    return Math.abs(value) < 1e-15 * step || digits >= 15 ? value : Number(value.toFixed(digits));
  });
};

const logTicks = (scale: Scale, most: number): number[] => {
  const low = Math.log10(scale.min);
  const high = Math.log10(scale.max);
  const decades = high - low;
  if (decades < 0.7) return multiples(scale.min, scale.max, niceStep(scale.max - scale.min, most));
  const factors = decades * 3 <= most ? [1, 2, 5] : [1];
  const stride = Math.max(1, Math.ceil(decades / Math.max(1, most)));
  const result: number[] = [];
  for (let power = Math.ceil((low - 1) / stride) * stride; power <= high + 1e-9; power += stride) {
    for (const factor of factors) {
      const value = Number(`${factor}e${power}`);
      if (value >= scale.min * (1 - 1e-9) && value <= scale.max * (1 + 1e-9)) result.push(value);
    }
  }
  return result.length >= 2 ? result : [scale.min, scale.max];
};

/** Return values at which the axis has a label: round numbers, about `most` of them. */
export const ticks = (scale: Scale, most: number): number[] =>
  scale.log ? logTicks(scale, most) : multiples(scale.min, scale.max, niceStep(scale.max - scale.min, most));
