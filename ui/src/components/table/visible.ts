/** Which rows of a long table exist in the document. */

/** Height of a row in pixels. All rows have the same height, so that places follow from numbers. */
export const ROW_PX = 40;

/** Rows beyond each edge that exist before they are visible. */
const BEYOND = 8;

/** First and last place of the rows in the document, for a position of the scroll bar. The last is -1 for no rows. */
export const visibleRange = (scrollPx: number, heightPx: number, total: number): { first: number; last: number } => {
  const first = Math.max(0, Math.min(total - 1, Math.floor(scrollPx / ROW_PX) - BEYOND));
  const last = Math.min(total - 1, Math.ceil((scrollPx + heightPx) / ROW_PX) + BEYOND);
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
