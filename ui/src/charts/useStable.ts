import { useCallback, useLayoutEffect, useRef } from "react";

/** Return a function that stays the same and calls the newest one. It is for events and effects, never for rendering. */
export const useStable = <A extends unknown[], R>(call: (...values: A) => R): ((...values: A) => R) => {
  const latest = useRef(call);
  useLayoutEffect(() => {
    latest.current = call;
  });
  return useCallback((...values: A) => latest.current(...values), []);
};
