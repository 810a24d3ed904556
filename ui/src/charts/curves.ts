/** Curves of a chart: their ranges, their paint, and the one that is nearest to the pointer. */
import { lonePoints, lowerBound, nearest, type Points, trace } from "./lines";
import { COLORS, DASHES, type Look, type Mode } from "./palette";
import { type Area } from "./plotHost";
import { quantile } from "./ranks";
import { extent, type Scale, scaleOf } from "./scales";

/** One curve of a chart. */
export interface Curve {
  readonly id: string;
  readonly name: string;
  readonly look: Look;
  readonly points: Points;
  /** What its points mean where their heights do not tell it: the share of a part that stands on top of other parts. */
  readonly values?: readonly (number | null)[];
  /** Values before smoothing, drawn faintly below. */
  readonly raw?: Points | null;
  /** Drawn thick and above the other curves. */
  readonly strong?: boolean;
  /** Fill the area below, down to the axis. */
  readonly filled?: boolean;
  /** Indices of gaps between two attempts. A dotted line joins the points beside each. */
  readonly joins?: readonly number[];
  /** Smallest and largest value around each point, drawn as a band. */
  readonly band?: { readonly low: readonly (number | null)[]; readonly high: readonly (number | null)[] } | null;
}

/** Return the value of a point, or null for a gap. */
export const valueOf = ({ points, values }: Pick<Curve, "points" | "values">, index: number): number | null => (values ?? points.ys)[index] ?? null;

export const colorOf = (look: Look, mode: Mode): string => COLORS[mode][look.color] ?? COLORS[mode][0] ?? "#888888";

/** Return the range of x of all curves. */
export const rangeOfX = (curves: readonly Curve[], log: boolean): [number, number] | null => extent(curves.map(({ points }) => points.xs), log);

/**
 * Return the range that contains both. The data extend a given range by its own length at most: a clock that was wrong by
 * years does not squeeze the rest of the chart.
 */
export const joinedRange = (given: readonly [number, number] | null, data: readonly [number, number] | null): readonly [number, number] | null => {
  if (given === null || data === null) return given ?? data;
  const length = given[1] - given[0];
  return [Math.max(given[0] - length, Math.min(given[0], data[0])), Math.min(given[1] + length, Math.max(given[1], data[1]))];
};

const within = (points: Points, range: readonly [number, number] | null): readonly (number | null)[] => {
  if (range === null) return points.ys;
  const from = lowerBound(points.xs, range[0]);
  return points.ys.slice(from, lowerBound(points.xs, range[1] + Math.abs(range[1]) * 1e-12));
};

export interface RangeOptions {
  readonly log: boolean;
  /** Leave the largest and smallest 1 % of the values outside. */
  readonly robust: boolean;
  /** Begin the axis at zero. */
  readonly fromZero: boolean;
}

/** Return the scale of y for the points within a range of x. */
export const scaleOfY = (curves: readonly Curve[], range: readonly [number, number] | null, { log, robust, fromZero }: RangeOptions): Scale => {
  const columns = curves.flatMap((curve) => [
    within(curve.points, range),
    ...(curve.raw ? [within(curve.raw, range)] : []),
    ...(curve.band ? [within({ xs: curve.points.xs, ys: curve.band.low }, range), within({ xs: curve.points.xs, ys: curve.band.high }, range)] : []),
  ]);
  let found = extent(columns, log);
  if (robust && found !== null) {
    const values = columns.flat().filter((value): value is number => value !== null && (!log || value > 0)).sort((a, b) => a - b);
    if (values.length >= 20) found = [quantile(values, 0.01), quantile(values, 0.99)];
  }
  if (fromZero && !log && found !== null) found = [Math.min(0, found[0]), Math.max(found[1], found[0] === found[1] && found[1] === 0 ? 1 : found[1])];
  const scale = scaleOf(found, log, 0.04);
  return fromZero && !log && found !== null && found[0] === 0 ? { ...scale, min: 0 } : scale;
};

/** Return the number of values that a log axis cannot show. */
export const notPositive = (curves: readonly Curve[]): number =>
  curves.reduce((sum, { points }) => sum + points.ys.filter((value) => value !== null && value <= 0).length, 0);

const indices = ({ xs }: Points, area: Area): [number, number] => {
  // One point more at both ends, so that the line leaves the area instead of ending within it.
  let [from, to] = [0, xs.length - 1];
  const right = area.left + area.width;
  while (from < to && !(area.toX(xs[from + 1] ?? 0) >= area.left)) from += 1;
  while (to > from && area.toX(xs[to - 1] ?? 0) > right) to -= 1;
  return [from, to];
};

const strokeLine = (ctx: CanvasRenderingContext2D, points: Points, area: Area): void => {
  const path = new Path2D();
  const [from, to] = indices(points, area);
  trace(path, points, from, to, area.toX, area.toY);
  ctx.stroke(path);
};

const fillBelow = (ctx: CanvasRenderingContext2D, { xs, ys }: Points, area: Area, low: readonly (number | null)[] | null): void => {
  const bottom = area.top + area.height;
  let start = 0;
  while (start < xs.length) {
    while (start < xs.length && ys[start] === null) start += 1;
    let end = start;
    while (end < xs.length && ys[end] !== null) end += 1;
    if (end > start) {
      ctx.beginPath();
      for (let at = start; at < end; at += 1) ctx.lineTo(area.toX(xs[at] ?? 0), area.toY(ys[at] ?? 0));
      if (low === null) {
        ctx.lineTo(area.toX(xs[end - 1] ?? 0), bottom);
        ctx.lineTo(area.toX(xs[start] ?? 0), bottom);
      } else {
        for (let at = end - 1; at >= start; at -= 1) ctx.lineTo(area.toX(xs[at] ?? 0), area.toY(low[at] ?? 0));
      }
      ctx.closePath();
      ctx.fill();
    }
    start = end;
  }
};

/** Radius of a point without a line to it, in pixels. */
const LONE_PX = 3;

/** Dots of the line between two attempts, in pixels. */
const JOIN_DASH = [1, 4];

const strokeJoins = (ctx: CanvasRenderingContext2D, { points: { xs, ys }, joins = [] }: Curve, area: Area): void => {
  ctx.setLineDash(JOIN_DASH.map((length) => length * area.ratio));
  for (const index of joins) {
    const [before, after] = [ys[index - 1] ?? null, ys[index + 1] ?? null];
    if (before === null || after === null) continue;
    ctx.beginPath();
    ctx.moveTo(area.toX(xs[index - 1] ?? 0), area.toY(before));
    ctx.lineTo(area.toX(xs[index + 1] ?? 0), area.toY(after));
    ctx.stroke();
  }
};

/** Paint one curve. */
export const paintCurve = (ctx: CanvasRenderingContext2D, curve: Curve, area: Area, mode: Mode, alpha: number, width: number): void => {
  const color = colorOf(curve.look, mode);
  ctx.save();
  [ctx.strokeStyle, ctx.fillStyle, ctx.lineJoin, ctx.lineCap] = [color, color, "round", "round"];
  if (curve.filled) {
    fillBelow(ctx, curve.points, area, null);
    ctx.restore();
    return;
  }
  if (curve.band) {
    ctx.globalAlpha = alpha * 0.18;
    fillBelow(ctx, { xs: curve.points.xs, ys: curve.band.high }, area, curve.band.low);
  }
  if (curve.raw) {
    [ctx.globalAlpha, ctx.lineWidth] = [alpha * 0.25, area.ratio];
    strokeLine(ctx, curve.raw, area);
  }
  [ctx.globalAlpha, ctx.lineWidth] = [alpha, width * area.ratio];
  ctx.setLineDash((DASHES[curve.look.dash] ?? []).map((length) => length * area.ratio));
  strokeLine(ctx, curve.points, area);
  for (const index of lonePoints(curve.points, ...indices(curve.points, area))) paintDot(ctx, curve, index, area, LONE_PX);
  strokeJoins(ctx, curve, area);
  ctx.restore();
};

/** Paint the dot of one point. */
export const paintDot = (ctx: CanvasRenderingContext2D, { points }: Curve, index: number, area: Area, radius: number): void => {
  const y = points.ys[index];
  if (y === null || y === undefined) return;
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.arc(area.toX(points.xs[index] ?? 0), area.toY(y), radius * area.ratio, 0, 2 * Math.PI);
  ctx.fill();
};

/** Value of a curve near an x. */
export interface Reading {
  readonly curve: Curve;
  readonly index: number;
  readonly x: number;
  readonly y: number;
  /** Distance to the pointer in pixels, vertical only. A filled curve below the pointer is far away: it is under another one. */
  readonly distance: number;
}

/** Distance of filled curves that do not reach the pointer: more pixels than a chart has. */
const BELOW_PX = 1e6;

/** Points at most this many pixels away from an x are read there. */
const REACH_PX = 24;

/** Return the values of all curves at an x, the nearest to a height first. Curves without a point nearby are left out. */
export const readings = (curves: readonly Curve[], x: number, top: number | null, area: Area): Reading[] => {
  const at = area.toX(x);
  const result: Reading[] = [];
  for (const curve of curves) {
    const index = nearest(curve.points, x);
    const height = curve.points.ys[index];
    const y = valueOf(curve, index);
    if (index < 0 || height === null || height === undefined || y === null) continue;
    const found = curve.points.xs[index] ?? 0;
    const place = area.toX(found);
    const inside = x >= (curve.points.xs[0] ?? 0) && x <= (curve.points.xs[curve.points.xs.length - 1] ?? 0);
    if (!inside && !(Math.abs(place - at) <= REACH_PX)) continue;
    const edge = area.toY(height);
    const distance = top === null || Number.isNaN(edge) ? 0 : Math.abs(edge - top);
    result.push({ curve, index, x: found, y, distance: curve.filled === true && top !== null && edge > top ? distance + BELOW_PX : distance });
  }
  return top === null ? result : result.sort((a, b) => a.distance - b.distance);
};
