import { type RefObject, useLayoutEffect, useState } from "react";

/** Least height of a table, in pixels. */
const LEAST = 240;
/** Room below the table, in pixels. */
const BELOW = 24;

/** Return the height from the upper edge of an element to the lower edge of the window, in pixels. */
export const useRoom = (element: RefObject<HTMLElement | null>, least = LEAST): number => {
  const [room, setRoom] = useState(600);
  useLayoutEffect(() => {
    const measure = () => {
      const top = element.current?.getBoundingClientRect().top;
      if (top !== undefined) setRoom(Math.max(least, Math.round(window.innerHeight - Math.max(0, top) - BELOW)));
    };
    measure();
    window.addEventListener("resize", measure);
    const observer = new ResizeObserver(measure);
    // What is above the table moves it.
    if (element.current?.parentElement) observer.observe(element.current.parentElement);
    return () => {
      window.removeEventListener("resize", measure);
      observer.disconnect();
    };
  }, [element, least]);
  return room;
};
