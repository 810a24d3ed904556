/** A metric over two hyperparameters: values between the trials, and ranks of the trials. */

/** Free space around the places from 0 to 1, as `PointChart` has it. */
export const SURFACE_MARGIN = 0.05;

/** Cells along an axis. */
export const SURFACE_CELLS = 48;

/** Values on a grid, row by row from the bottom. */
export interface Surface {
  readonly cells: number;
  readonly values: Float64Array;
}

/** Return the known values by cell. Of trials at one place the best one counts, of neighbours in one cell the later one. */
const known = (xs: ArrayLike<number>, ys: ArrayLike<number>, metric: readonly (number | null)[], smallerIsBetter: boolean, cells: number): Map<number, number> => {
  const places = new Map<number, Map<number, { cell: number; value: number }>>();
  const cellOf = (place: number) => Math.round(((place + SURFACE_MARGIN) / (1 + 2 * SURFACE_MARGIN)) * (cells - 1));
  metric.forEach((value, index) => {
    const [x, y] = [xs[index] ?? Number.NaN, ys[index] ?? Number.NaN];
    if (value === null || !Number.isFinite(value) || !(x >= 0 && x <= 1 && y >= 0 && y <= 1)) return;
    const column = places.get(x) ?? new Map<number, { cell: number; value: number }>();
    places.set(x, column);
    const at = column.get(y);
    if (at === undefined) column.set(y, { cell: cellOf(y) * cells + cellOf(x), value });
    else at.value = smallerIsBetter ? Math.min(at.value, value) : Math.max(at.value, value);
  });
  // Optuna writes a place once per trial there, so that its last trial decides which of two places in a cell is later.
  const found = new Map<number, number>();
  metric.forEach((_, index) => {
    const at = places.get(xs[index] ?? Number.NaN)?.get(ys[index] ?? Number.NaN);
    if (at !== undefined) found.set(at.cell, at.value);
  });
  return found;
};

/**
 * Solve for the cells that are not fixed: each is the mean of its neighbours. The matrix is symmetric, positive definite
 * and banded, so it is solved by Cholesky's method with `cells` entries per row.
 */
const filled = (fixed: ReadonlyMap<number, number>, cells: number): Float64Array => {
  const [size, wide] = [cells * cells, cells + 1];
  const rows = new Float64Array(size * wide);
  const result = new Float64Array(size);
  // Entry of a row for a column that is at most `cells` before it.
  const at = (row: number, column: number) => row * wide + column - row + cells;
  for (let cell = 0; cell < size; cell += 1) {
    const value = fixed.get(cell);
    if (value !== undefined) {
      [rows[at(cell, cell)], result[cell]] = [1, value];
      continue;
    }
    const [x, y] = [cell % cells, Math.floor(cell / cells)];
    const beside = [x > 0 ? cell - 1 : -1, x < cells - 1 ? cell + 1 : -1, y > 0 ? cell - cells : -1, y < cells - 1 ? cell + cells : -1].filter((one) => one >= 0);
    rows[at(cell, cell)] = beside.length;
    for (const one of beside) {
      const there = fixed.get(one);
      if (there !== undefined) result[cell] = (result[cell] ?? 0) + there;
      else if (one < cell) rows[at(cell, one)] = -1;
    }
  }
  for (let row = 0; row < size; row += 1) {
    let known = result[row] ?? 0;
    const first = Math.max(0, row - cells);
    for (let column = first; column <= row; column += 1) {
      let sum = rows[at(row, column)] ?? 0;
      for (let k = Math.max(first, column - cells); k < column; k += 1) sum -= (rows[at(row, k)] ?? 0) * (rows[at(column, k)] ?? 0);
      const factor = column === row ? Math.sqrt(sum) : sum / (rows[at(column, column)] ?? 1);
      rows[at(row, column)] = factor;
      if (column < row) known -= factor * (result[column] ?? 0);
    }
    result[row] = known / (rows[at(row, row)] ?? 1);
  }
  for (let row = size - 1; row >= 0; row -= 1) {
    const value = (result[row] ?? 0) / (rows[at(row, row)] ?? 1);
    result[row] = value;
    for (let column = Math.max(0, row - cells); column < row; column += 1) result[column] = (result[column] ?? 0) - (rows[at(row, column)] ?? 0) * value;
  }
  return result;
};

/**
 * Return a metric between the trials, or null unless the trials differ in both hyperparameters.
 *
 * A cell without a trial has the mean of its neighbours (Poisson's equation with zero derivatives at the edges), which is
 * how Plotly and Optuna fill the gaps of a contour chart.
 *
 * @param xs places from 0 to 1 per trial, as `Dimension` has them; trials outside have no value
 */
export const surfaceOf = (xs: ArrayLike<number>, ys: ArrayLike<number>, metric: readonly (number | null)[], smallerIsBetter: boolean, cells = SURFACE_CELLS): Surface | null => {
  const fixed = known(xs, ys, metric, smallerIsBetter, cells);
  const columns = new Set([...fixed.keys()].map((cell) => cell % cells));
  const rows = new Set([...fixed.keys()].map((cell) => Math.floor(cell / cells)));
  if (columns.size < 2 || rows.size < 2) return null;
  let [low, high] = [Infinity, -Infinity];
  for (const value of fixed.values()) [low, high] = [Math.min(low, value), Math.max(high, value)];
  // Shares of the range, halved first: the range of two large values may be infinite.
  const share = (value: number) => (high > low ? (value / 2 - low / 2) / (high / 2 - low / 2) : 0);
  const shares = filled(new Map([...fixed].map(([cell, value]) => [cell, share(value)])), cells);
  return { cells, values: shares.map((one) => low * (1 - one) + high * one) };
};

/** Return the value at a place, between those of the four nearest cells. */
export const surfaceAt = ({ cells, values }: Surface, x: number, y: number): number => {
  const along = (place: number) => Math.min(cells - 1, Math.max(0, ((place + SURFACE_MARGIN) / (1 + 2 * SURFACE_MARGIN)) * (cells - 1)));
  const [column, row] = [along(x), along(y)];
  const [left, below] = [Math.min(cells - 2, Math.floor(column)), Math.min(cells - 2, Math.floor(row))];
  const [right, above] = [column - left, row - below];
  const at = (dx: number, dy: number) => values[(below + dy) * cells + left + dx] ?? Number.NaN;
  return (at(0, 0) * (1 - right) + at(1, 0) * right) * (1 - above) + (at(0, 1) * (1 - right) + at(1, 1) * right) * above;
};

/** Return the place of each value among all of them, from 0 (worst) to 1 (best); equal values share the mean place, NaN without a value. */
export const ranksOf = (values: readonly (number | null)[], smallerIsBetter: boolean): Float32Array => {
  const sorted = values.filter((value): value is number => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  const first = new Map<number, number>();
  const last = new Map<number, number>();
  sorted.forEach((value, index) => {
    if (!first.has(value)) first.set(value, index);
    last.set(value, index);
  });
  return Float32Array.from(values, (value) => {
    const from = value === null ? undefined : first.get(value);
    if (value === null || from === undefined) return Number.NaN;
    const place = sorted.length < 2 ? 0.5 : (from + (last.get(value) ?? from)) / 2 / (sorted.length - 1);
    return smallerIsBetter ? 1 - place : place;
  });
};
