import { type ReactNode, type Ref, useEffect, useImperativeHandle, useLayoutEffect, useRef, useState } from "react";

import { heightOf, LINE_PX, lineAt, scrollOf } from "./scroll";

/** Lines beyond each edge that exist. */
const BEYOND = 8;

/** What others may do with the frame. */
export interface LogRowsHandle {
  /** Scroll so that a line is a few lines below the top. */
  reveal: (line: number, context?: number) => void;
}

interface Props {
  count: number;
  label: string;
  /** Half as high as usual. */
  isShort: boolean;
  render: (index: number) => ReactNode;
  /** Receives the visible lines. */
  onShow: (first: number, last: number) => void;
  /** The end stays visible while lines are added. */
  pinned: boolean;
  /** The reader scrolled to the end, or away from it. */
  onPinned: (pinned: boolean) => void;
  handle: Ref<LogRowsHandle>;
}

/** Lines in a frame, of which only the visible ones exist. */
export const LogRows = ({ count, label, isShort, render, onShow, pinned, onPinned, handle }: Props) => {
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(0);
  useEffect(() => {
    const element = frame.current;
    if (element === null) return undefined;
    const observer = new ResizeObserver(() => setRoom(element.clientHeight));
    observer.observe(element);
    setRoom(element.clientHeight);
    return () => observer.disconnect();
  }, []);
  const scrollTo = (position: number) => {
    if (frame.current === null) return;
    frame.current.scrollTop = position;
    setTop(frame.current.scrollTop);
  };
  useImperativeHandle(handle, () => ({
    reveal: (line, context = 5) => {
      const element = frame.current;
      if (element !== null) scrollTo(scrollOf(Math.max(0, line - context), count, element.clientHeight));
    },
  }));
  useLayoutEffect(() => {
    if (pinned && room > 0) scrollTo(heightOf(count));
  }, [count, pinned, room]);
  const first = lineAt(top, count, room);
  const from = Math.max(0, Math.floor(first) - BEYOND);
  const to = Math.min(count, Math.ceil(first + room / LINE_PX) + BEYOND);
  useEffect(() => {
    onShow(from, to);
  }, [from, to, onShow]);
  const shownTop = Math.min(top, Math.max(0, heightOf(count) - room));
  return (
    <div
      aria-label={label}
      className="dtrain-log"
      data-short={isShort || undefined}
      onScroll={({ currentTarget }) => {
        setTop(currentTarget.scrollTop);
        const isEnd = currentTarget.scrollTop + currentTarget.clientHeight >= currentTarget.scrollHeight - LINE_PX;
        if (isEnd !== pinned) onPinned(isEnd);
      }}
      ref={frame}
      role="region"
      tabIndex={0}
    >
      <div className="dtrain-log-room" style={{ height: heightOf(count) }}>
        <div className="dtrain-log-lines" style={{ transform: `translateY(${shownTop - (first - from) * LINE_PX}px)` }}>
          {Array.from({ length: Math.max(0, to - from) }, (_, index) => render(from + index))}
        </div>
      </div>
    </div>
  );
};
