/** Which rows of a long table exist in the document. */

/** Height of a row in pixels. All rows of a table have the same height, so that places follow from numbers. */
export const ROW_PX = 40;

/** Height of a further line of a row on a phone, in pixels. */
export const LINE_PX = 16;

/** Rows beyond each edge that exist before they are visible. */
const BEYOND = 4;

/** The range moves by so many rows at a time, so that not every frame of a scroll renders. */
const STEP = 4;

/** Return the row at the upper edge for a position of the scroll bar, rounded down to a step. */
export const rowAt = (scrollPx: number, rowPx: number): number => Math.floor(Math.max(0, scrollPx) / rowPx / STEP) * STEP;

/** First and last place of the rows in the document, for the row at the upper edge. The last is -1 for no rows. */
export const visibleRange = (top: number, heightPx: number, total: number, rowPx: number): { first: number; last: number } => {
  const first = Math.max(0, Math.min(total - 1, top - BEYOND));
  const last = Math.min(total - 1, top + STEP + Math.ceil(heightPx / rowPx) + BEYOND);
  return { first: Math.max(0, first), last };
};

/** Place that a key moves the active row to, or null for another key. */
export const moved = (key: string, active: number, total: number, rowsPerPage: number): number | null => {
  const steps: Record<string, number> = {
    ArrowDown: active + 1,
    ArrowUp: active - 1,
    End: total - 1,
    Home: 0,
    PageDown: active + rowsPerPage,
    PageUp: active - rowsPerPage,
  };
  const next = Object.hasOwn(steps, key) ? steps[key] : undefined;
  return next === undefined || total === 0 ? null : Math.max(0, Math.min(total - 1, next));
};
