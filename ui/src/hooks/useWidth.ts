import { type RefObject, useLayoutEffect, useState } from "react";

/** Return the inner width of an element in pixels, and render again when it changes. */
export const useWidth = (element: RefObject<HTMLElement | null>): number => {
  const [width, setWidth] = useState(1_000);
  useLayoutEffect(() => {
    const target = element.current;
    if (target === null) return undefined;
    const observer = new ResizeObserver(() => setWidth(target.clientWidth || 1_000));
    observer.observe(target);
    return () => observer.disconnect();
  }, [element]);
  return width;
};
