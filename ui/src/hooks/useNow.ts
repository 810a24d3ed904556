import { useSyncExternalStore } from "react";

const EVERY_MS = 1_000;

let now = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
const listeners = new Set<() => void>();

const subscribe = (changed: () => void) => {
  listeners.add(changed);
  timer ??= setInterval(() => {
    if (document.hidden) return;
    now = Date.now();
    listeners.forEach((listener) => listener());
  }, EVERY_MS);
  return () => {
    listeners.delete(changed);
    if (listeners.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
};

/**
 * Return the time in milliseconds, and render again each second while the tab is visible. All callers share one timer.
 *
 * @param stepMs steps in which the time is returned, for components whose rendering takes longer
 */
export const useNow = (stepMs = EVERY_MS): number => useSyncExternalStore(subscribe, () => (stepMs === EVERY_MS ? now : Math.floor(now / stepMs) * stepMs));
