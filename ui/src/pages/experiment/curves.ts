/** From the answer of the API to the curves of a chart. */
import { type Curves, type CurveSeries } from "../../api/charts";
import { type Curve } from "../../charts/curves";
import { ordered } from "../../charts/lines";
import { type Look, lookOfTrial } from "../../charts/palette";
import { extent } from "../../charts/scales";
import { smoothed } from "../../charts/smoothing";

/** Return the look of a trial's curve. */
export const lookOf = ({ number }: Pick<CurveSeries, "number">): Look => lookOfTrial(number);

/** A curve, and whether its x had to be sorted. */
export interface Made {
  curves: Curve[];
  /** Series whose x ran backwards. */
  sorted: number;
  /** Values that are not finite. */
  gaps: number;
}

/** Return the curves of trials, smoothed, the marked ones and the best one thick. */
export const curvesOf = (data: Curves | undefined, smooth: number, marked: ReadonlySet<string>, looks?: readonly Look[]): Made => {
  let [sorted, gaps] = [0, 0];
  const curves = (data?.series ?? []).map((series, index): Curve => {
    const points = ordered(series.x, series.y);
    if (points.sorted) sorted += 1;
    gaps += points.ys.reduce((sum: number, y) => sum + (y === null ? 1 : 0), 0);
    const id = String(series.trial_id);
    const isSmooth = smooth > 0;
    return {
      id,
      name: series.trial_name,
      look: looks?.[index] ?? lookOf(series),
      points: isSmooth ? { xs: points.xs, ys: smoothed(points.xs, points.ys, smooth) } : points,
      raw: isSmooth ? points : null,
      strong: marked.size > 0 ? marked.has(id) : series.is_best,
    };
  });
  return { curves, sorted, gaps };
};

/** Return the last value of a series. */
export const lastValue = ({ y }: CurveSeries): number | null => y.findLast((value) => value !== null) ?? null;

/** Return the best value of a series. The API keeps extreme values when it reduces points. */
export const bestValue = ({ y }: CurveSeries, smallerIsBetter: boolean): number | null => {
  const range = extent([y]);
  return range === null ? null : range[smallerIsBetter ? 0 : 1];
};
