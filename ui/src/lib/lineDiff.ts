/** Most cells of the table that compares lines. Larger texts count as changed between their first and last difference. */
const MOST_CELLS = 4_000_000;

const common = (before: readonly string[], after: readonly string[]): { start: number; end: number } => {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  return { start, end };
};

/** Return which lines of a text differ from another text: lines that were added or changed, from 0. */
export const changedLines = (before: string, after: string): Set<number> => {
  const [old, now] = [before.split("\n"), after.split("\n")];
  const { start, end } = common(old, now);
  const [a, b] = [old.slice(start, old.length - end), now.slice(start, now.length - end)];
  const changed = new Set(b.map((_, index) => start + index));
  if (a.length === 0 || b.length === 0 || a.length * b.length > MOST_CELLS) return changed;
  // Longest common subsequence, from the end.
  const wide = b.length + 1;
  const table = new Uint32Array((a.length + 1) * wide);
  const at = (row: number, column: number) => table[row * wide + column] ?? 0;
  for (let row = a.length - 1; row >= 0; row -= 1) {
    for (let column = b.length - 1; column >= 0; column -= 1) {
      table[row * wide + column] = a[row] === b[column] ? at(row + 1, column + 1) + 1 : Math.max(at(row + 1, column), at(row, column + 1));
    }
  }
  let [row, column] = [0, 0];
  while (row < a.length && column < b.length) {
    if (a[row] === b[column]) {
      changed.delete(start + column);
      row += 1;
      column += 1;
    } else if (at(row + 1, column) >= at(row, column + 1)) row += 1;
    else column += 1;
  }
  return changed;
};
