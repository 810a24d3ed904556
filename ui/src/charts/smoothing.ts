/** Steps of a curve with many points. Fewer points count one step each, so that the look does not depend on the server's reduction. */
const MOST_STEPS = 500;

/**
 * Return exponentially smoothed values. Gaps stay gaps, and the average continues after them.
 *
 * The weight of a point decays with the distance on the x axis, so points that the server left out change little. The sum
 * of weights divides the average, so the first values are not pulled to zero.
 *
 * @param weight from 0 (no smoothing) to below 1
 */
export const smoothed = (xs: ArrayLike<number>, ys: ArrayLike<number | null>, weight: number): (number | null)[] => {
  if (!(weight > 0) || xs.length < 3) return Array.from(ys);
  const kept = Math.min(Math.sqrt(Math.min(weight, 1)), 0.999);
  const range = Math.abs((xs[xs.length - 1] ?? 0) - (xs[0] ?? 0));
  const resolution = Math.min(MOST_STEPS, xs.length - 1);
  let [sum, weights, before] = [0, 0, xs[0] ?? 0];
  const result: (number | null)[] = [];
  for (let index = 0; index < ys.length; index += 1) {
    const y = ys[index];
    if (y === null || y === undefined || !Number.isFinite(y)) {
      result.push(null);
      continue;
    }
    const x = xs[index] ?? before;
    const steps = range > 0 ? Math.max(0, ((x - before) / range) * resolution) : 1;
    const decay = kept ** steps;
    sum = sum * decay + y;
    weights = weights * decay + 1;
    before = x;
    result.push(sum / weights);
  }
  return result;
};
