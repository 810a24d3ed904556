import { type RefObject, startTransition, useEffect, useMemo, useState, type UIEvent } from "react";

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

/** Items that exist, by their indices. Empty if the last one is before the first. */
interface Range {
  first: number;
  last: number;
}

const isSame = (one: Range | null, other: Range): boolean => one !== null && one.first === other.first && one.last === other.last;

/**
 * Return the range that follows another one on the way to its target, with a limited number of new items.
 *
 * @param from null = no item exists, and all of the target may begin to
 */
export const approach = (from: Range | null, target: Range, most: number): Range => {
  if (from === null) return target;
  const kept = { first: Math.max(from.first, target.first), last: Math.min(from.last, target.last) };
  if (kept.last < kept.first) return { first: target.first, last: Math.min(target.last, target.first + most - 1) };
  const last = Math.min(target.last, kept.last + most);
  return { first: Math.max(target.first, kept.first - most + (last - kept.last)), last };
};

/**
 * Show a long list of items with known heights in a frame of a height.
 *
 * @param most new items of one frame while the list scrolls; the browser needs time to lay out and paint each one
 */
export const useVirtual = (frame: RefObject<HTMLElement | null>, heights: readonly number[], room: number, most: number): Virtual => {
  const [scroll, setScroll] = useState(0);
  const [drawn, setDrawn] = useState<Range | null>(null);
  const offsets = useMemo(() => {
    const sums = [0];
    for (const height of heights) sums.push((sums.at(-1) ?? 0) + height);
    return sums;
  }, [heights]);
  const total = offsets.at(-1) ?? 0;
  const top = Math.max(0, Math.min(scroll, total - room));
  const target = {
    first: Math.max(0, Math.min(heights.length - 1, indexAt(offsets, top)) - BEYOND),
    last: Math.min(heights.length - 1, indexAt(offsets, top + room + STEP_PX) + BEYOND),
  };
  const { first, last } = approach(drawn, target, most);
  const isDrawn = isSame(drawn, { first, last });
  useEffect(() => {
    if (isDrawn) return;
    const request = requestAnimationFrame(() => startTransition(() => setDrawn({ first, last })));
    return () => cancelAnimationFrame(request);
  }, [first, last, isDrawn]);
  const reveal = (index: number) => {
    const element = frame.current;
    const start = offsets[index];
    if (element === null || start === undefined) return;
    const end = start + (heights[index] ?? 0);
    if (start < element.scrollTop) element.scrollTo({ top: start });
    else if (end > element.scrollTop + element.clientHeight) element.scrollTo({ top: end - element.clientHeight });
    setScroll(rounded(element.scrollTop));
    // The item must exist at once, because it gets the focus.
    setDrawn(null);
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
