/** Points of curves: order, nearest point, and the path on the screen. */

/** Points of one curve in the order of x. Null is a gap. */
export interface Points {
  readonly xs: readonly number[];
  readonly ys: readonly (number | null)[];
}

/** Points that can be drawn, and how they differ from the data. */
export interface Ordered extends Points {
  /** Whether the x values ran backwards somewhere and were sorted. */
  readonly sorted: boolean;
}

/** Return the points in the order of x. Points without an x are left out, and a y that is not finite becomes a gap. */
export const ordered = (xs: ArrayLike<number | null>, ys: ArrayLike<number | null>): Ordered => {
  const outX: number[] = [];
  const outY: (number | null)[] = [];
  let sorted = false;
  for (let index = 0; index < xs.length; index += 1) {
    const x = xs[index];
    if (x === null || x === undefined || !Number.isFinite(x)) continue;
    const y = ys[index];
    if (outX.length > 0 && x < (outX[outX.length - 1] ?? x)) sorted = true;
    outX.push(x);
    outY.push(y !== null && y !== undefined && Number.isFinite(y) ? y : null);
  }
  if (!sorted) return { xs: outX, ys: outY, sorted };
  const order = outX.map((_, index) => index).sort((a, b) => (outX[a] ?? 0) - (outX[b] ?? 0) || a - b);
  return { xs: order.map((index) => outX[index] ?? 0), ys: order.map((index) => outY[index] ?? null), sorted };
};

/** Return the last point that is no gap, or null without one. */
export const lastPoint = ({ xs, ys }: Points): { x: number; y: number } | null => {
  const at = ys.findLastIndex((y) => y !== null);
  const y = ys[at];
  return y === null || y === undefined ? null : { x: xs[at] ?? 0, y };
};

/** Return whether the last value is a gap: a metric that became NaN or infinite. */
export const endsInGap = ({ ys }: Pick<Points, "ys">): boolean => ys.at(-1) === null;

/** Return the points between two indices that have a gap or an end at both sides: no line leads to them. */
export const lonePoints = ({ ys }: Pick<Points, "ys">, from: number, to: number): number[] => {
  const isGap = (index: number) => (ys[index] ?? null) === null;
  const found: number[] = [];
  for (let index = from; index <= to; index += 1) if (!isGap(index) && isGap(index - 1) && isGap(index + 1)) found.push(index);
  return found;
};

/** Return the index of the first x that is not below a value. */
export const lowerBound = (xs: readonly number[], value: number): number => {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((xs[middle] ?? 0) < value) low = middle + 1;
    else high = middle;
  }
  return low;
};

/** Return the index of the point nearest to an x that has a value, or -1. Gaps wider than `reach` points are not searched. */
export const nearest = ({ xs, ys }: Points, x: number, reach = 64): number => {
  const right = lowerBound(xs, x);
  let best = -1;
  const take = (index: number): boolean => {
    if (ys[index] === null || ys[index] === undefined) return false;
    if (best < 0 || Math.abs((xs[index] ?? 0) - x) < Math.abs((xs[best] ?? 0) - x)) best = index;
    return true;
  };
  for (let index = right - 1; index >= Math.max(0, right - reach); index -= 1) if (take(index)) break;
  for (let index = right; index < Math.min(xs.length, right + reach); index += 1) if (take(index)) break;
  return best;
};

/** Where a path is drawn: a `Path2D`, or a list in tests. */
export interface Pen {
  moveTo: (x: number, y: number) => void;
  lineTo: (x: number, y: number) => void;
}

/**
 * Draw the path of points between two indices. Points of one column of pixels become their first, smallest, largest and
 * last value, so the work is bounded by the width. A point between two gaps becomes a short dash.
 *
 * @param toX pixel of an x
 * @param toY pixel of a y, NaN for a value without a place on the axis
 */
export const trace = (pen: Pen, { xs, ys }: Points, from: number, to: number, toX: (x: number) => number, toY: (y: number) => number): void => {
  let column = Number.NaN;
  let [low, high, last] = [0, 0, 0];
  let count = 0;
  let open = false;
  const flush = () => {
    if (Number.isNaN(column)) return;
    if (low !== high) {
      pen.lineTo(column, low);
      pen.lineTo(column, high);
    }
    pen.lineTo(column, last);
    column = Number.NaN;
  };
  const close = () => {
    flush();
    if (open && count === 1) pen.lineTo(lastX + 1, last);
    open = false;
    count = 0;
  };
  let lastX = 0;
  for (let index = Math.max(0, from); index <= Math.min(to, xs.length - 1); index += 1) {
    const y = ys[index];
    const at = y === null || y === undefined ? Number.NaN : toY(y);
    if (Number.isNaN(at)) {
      close();
      continue;
    }
    const x = Math.round(toX(xs[index] ?? 0));
    if (!open) {
      pen.moveTo(x, at);
      open = true;
    } else if (x !== column) flush();
    if (x !== column) [column, low, high] = [x, at, at];
    [low, high, last, lastX] = [Math.min(low, at), Math.max(high, at), at, x];
    count += 1;
  }
  close();
};
