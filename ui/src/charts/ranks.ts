/** Colours by value: places between the smaller and the larger values, robust against outliers. */

/** Return the value below which a share of the sorted values lies. */
export const quantile = (sorted: readonly number[], share: number): number => {
  const at = Math.min(sorted.length - 1, Math.max(0, share * (sorted.length - 1)));
  const low = sorted[Math.floor(at)] ?? Number.NaN;
  const high = sorted[Math.ceil(at)] ?? Number.NaN;
  return low + (high - low) * (at - Math.floor(at));
};

/**
 * Return the function from a value to its place between 0 (worst) and 1 (best), NaN without a value.
 *
 * The lowest and highest 5 % of the values share the ends of the scale, so that one diverged trial does not give all
 * others the same color.
 */
export const goodnessOf = (values: readonly (number | null)[], smallerIsBetter: boolean): ((value: number | null) => number) => {
  const sorted = values.filter((value): value is number => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  const [low, high] = [quantile(sorted, 0.05), quantile(sorted, 0.95)];
  return (value) => {
    if (value === null || !Number.isFinite(value)) return Number.NaN;
    const place = high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5;
    return smallerIsBetter ? 1 - place : place;
  };
};

/** Return a place between 0 (worst) and 1 (best) per value, NaN without a value. */
export const goodness = (values: readonly (number | null)[], smallerIsBetter: boolean): Float32Array => Float32Array.from(values, goodnessOf(values, smallerIsBetter));
