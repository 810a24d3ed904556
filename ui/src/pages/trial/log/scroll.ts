/** Places of lines in a frame that scrolls. All lines have the same height. */

export const LINE_PX = 18;

/** Browsers limit the height of an element. Beyond it, a pixel of the scroll bar stands for more than a pixel of lines. */
export const HEIGHT_MOST_PX = 15_000_000;

/** Return the height of the room in which lines scroll, in pixels. */
export const heightOf = (count: number): number => Math.min(count * LINE_PX, HEIGHT_MOST_PX);

/** Return the index of the line at the top of a frame, with the hidden share of the line. */
export const lineAt = (scrollTop: number, count: number, room: number): number => {
  const height = heightOf(count);
  const most = Math.max(0, count - room / LINE_PX);
  if (height <= room) return 0;
  return Math.max(0, Math.min(most, (scrollTop / (height - room)) * most));
};

/** Return the scroll position at which a line is at the top of a frame. */
export const scrollOf = (line: number, count: number, room: number): number => {
  const most = Math.max(0, count - room / LINE_PX);
  return most === 0 ? 0 : (Math.min(line, most) / most) * Math.max(0, heightOf(count) - room);
};
