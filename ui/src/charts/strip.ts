/** Heat strip of step times: one row per rank, one cell per span of time. */

/** Ratio to the median from which a cell has the full colour. */
export const FULL_RATIO = 1.5;

/** Return the median of the finite values, or null without any. */
export const median = (values: Iterable<number | null>): number | null => {
  const sorted = [...values].filter((value): value is number => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  if (sorted.length === 0) return null;
  const middle = sorted.length >> 1;
  const high = sorted[middle] ?? 0;
  return sorted.length % 2 === 1 ? high : (high + (sorted[middle - 1] ?? 0)) / 2;
};

/** Return the median over the ranks at each span of time. A pause of the whole gang is not the fault of one rank. */
export const medians = (rows: readonly (readonly (number | null)[])[], columns: number): (number | null)[] =>
  Array.from({ length: columns }, (_, at) => median(rows.map((row) => row[at] ?? null)));

/**
 * Return the place of a step time on a scale from -1 (fast) over 0 (as the median rank) to 1 (slow), NaN without data.
 * Ratios count as logarithms: half the time is as far from the middle as twice the time.
 */
export const heat = (value: number | null | undefined, typical: number | null | undefined): number => {
  if (value === null || value === undefined || typical === null || typical === undefined) return Number.NaN;
  if (!(value > 0) || !(typical > 0) || !Number.isFinite(value)) return Number.NaN;
  return Math.min(1, Math.max(-1, Math.log(value / typical) / Math.log(FULL_RATIO)));
};

/** Return the height of a row in pixels, so that many ranks fit and few are easy to hit. */
export const rowHeight = (ranks: number): number => Math.max(3, Math.min(18, Math.floor(420 / Math.max(1, ranks))));
