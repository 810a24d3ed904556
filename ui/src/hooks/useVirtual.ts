import { type RefObject, startTransition, useMemo, useState, type UIEvent } from "react";

/** Items of different heights in a scrolling frame, of which only the visible ones exist. */
export interface Virtual {
  first: number;
  /** -1 without items. */
  last: number;
  /** Room before the first and after the last item that exists, in pixels. */
  before: number;
  after: number;
  onScroll: (event: UIEvent<HTMLElement>) => void;
  /** Scroll so that an item is visible. */
  reveal: (index: number) => void;
}

/** Items beyond each edge that exist before they are visible. */
const BEYOND = 2;

/** The range moves by so many pixels at a time, so that not every frame of a scroll renders. */
const STEP_PX = 120;

const rounded = (position: number): number => Math.floor(position / STEP_PX) * STEP_PX;

/** Return the last index whose offset is at most a position. Offsets rise. */
export const indexAt = (offsets: readonly number[], position: number): number => {
  let low = 0;
  let high = offsets.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if ((offsets[middle] ?? 0) <= position) low = middle;
    else high = middle - 1;
  }
  return low;
};

/** Show a long list of items with known heights in a frame of a height. */
export const useVirtual = (frame: RefObject<HTMLElement | null>, heights: readonly number[], room: number): Virtual => {
  const [scroll, setScroll] = useState(0);
  const offsets = useMemo(() => {
    const sums = [0];
    for (const height of heights) sums.push((sums.at(-1) ?? 0) + height);
    return sums;
  }, [heights]);
  const total = offsets.at(-1) ?? 0;
  const top = Math.max(0, Math.min(scroll, total - room));
  const first = Math.max(0, Math.min(heights.length - 1, indexAt(offsets, top)) - BEYOND);
  const last = Math.min(heights.length - 1, indexAt(offsets, top + room + STEP_PX) + BEYOND);
  const reveal = (index: number) => {
    const element = frame.current;
    const start = offsets[index];
    if (element === null || start === undefined) return;
    const end = start + (heights[index] ?? 0);
    if (start < element.scrollTop) element.scrollTo({ top: start });
    else if (end > element.scrollTop + element.clientHeight) element.scrollTo({ top: end - element.clientHeight });
    setScroll(rounded(element.scrollTop));
  };
  return {
    first,
    last,
    before: offsets[first] ?? 0,
    after: last < 0 ? 0 : total - (offsets[last + 1] ?? total),
    onScroll: ({ currentTarget }) => {
      // A transition renders in slices, so that the scroll bar never waits for new items.
      startTransition(() => setScroll(rounded(currentTarget.scrollTop)));
    },
    reveal,
  };
};
