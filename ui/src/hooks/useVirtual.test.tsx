import { act, fireEvent, render, screen } from "@testing-library/react";
import { useRef } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { approach, useVirtual } from "./useVirtual";

const HEIGHTS = Array.from({ length: 1_000 }, () => 20);

const List = ({ most }: { most: number }) => {
  const frame = useRef<HTMLDivElement>(null);
  const { first, last, onScroll } = useVirtual(frame, HEIGHTS, 400, most);
  return <div data-testid="frame" onScroll={onScroll} ref={frame}>{`${first} to ${last}`}</div>;
};

describe("approach", () => {
  it("has the whole target at once where nothing exists", () => {
    expect(approach(null, { first: 5, last: 40 }, 3)).toEqual({ first: 5, last: 40 });
  });

  it("adds a limited number of items, after the ones that exist first", () => {
    expect(approach({ first: 0, last: 20 }, { first: 10, last: 30 }, 4)).toEqual({ first: 10, last: 24 });
    expect(approach({ first: 20, last: 30 }, { first: 10, last: 32 }, 4)).toEqual({ first: 18, last: 32 });
  });

  it("begins at the first item of a target that is elsewhere", () => {
    expect(approach({ first: 0, last: 20 }, { first: 500, last: 530 }, 4)).toEqual({ first: 500, last: 503 });
  });

  it("reaches each target and stays there", () => {
    for (const target of [{ first: 0, last: 30 }, { first: 15, last: 18 }, { first: 90, last: 99 }, { first: 0, last: -1 }]) {
      let range = { first: 10, last: 40 };
      for (let frame = 0; frame < 40; frame += 1) range = approach(range, target, 1);
      expect(range).toEqual(target);
    }
  });
});

describe("a list that scrolls", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("adds items frame by frame until all visible ones exist", () => {
    render(<List most={5} />);
    const frame = screen.getByTestId("frame");
    expect(frame.textContent).toBe("0 to 28");
    act(() => void vi.advanceTimersByTime(100));
    frame.scrollTop = 6_000;
    fireEvent.scroll(frame);
    expect(frame.textContent).toBe("298 to 302");
    act(() => void vi.advanceTimersToNextFrame());
    expect(frame.textContent).toBe("298 to 307");
    for (let count = 0; count < 10; count += 1) act(() => void vi.advanceTimersToNextFrame());
    expect(frame.textContent).toBe("298 to 328");
  });
});
