/** Values of several series on top of each other. */

/**
 * Return the upper edge of each series, in the order of the input. A point without any value is a gap in all of them, and
 * a value that is absent or negative counts as 0.
 */
export const stacked = (columns: readonly (readonly (number | null)[])[], points: number): (number | null)[][] => {
  const sums: (number | null)[] = Array.from({ length: points }, (_, at) =>
    columns.some((column) => column[at] !== null && column[at] !== undefined) ? 0 : null,
  );
  return columns.map((column) => {
    for (let at = 0; at < points; at += 1) {
      const sum = sums[at];
      if (sum !== null && sum !== undefined) sums[at] = sum + Math.max(0, column[at] ?? 0);
    }
    return [...sums];
  });
};
