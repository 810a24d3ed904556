/** Requests that a page sends before the part of it that shows their answers is there. */
import { useEffect } from "react";

import { cached, keep } from "./cache";
import { type Answer, fetchData } from "./client";

/** Age up to which an early answer is not requested again, in milliseconds. */
const FRESH_MS = 1_000;

const running = new Map<string, Promise<Answer<unknown> | null>>();
/** Times of the answers that no part of a page has taken over. */
const arrived = new Map<string, number>();

/** Request a path, unless its answer is known or on its way. The answer is kept for the next reader of the path. */
export const requestEarly = (path: string): void => {
  if (running.has(path) || cached(path) !== null) return;
  const request = fetchData<unknown>(path, null, new AbortController().signal);
  running.set(path, request);
  request
    .then((answer) => {
      const at = Date.now();
      if (answer !== null) keep(path, answer, at);
      arrived.set(path, at);
    })
    // The part of the page that needs the answer requests it again, and shows the error.
    .catch(() => undefined)
    .finally(() => running.delete(path));
};

/** Return the early request of a path that is on its way, or undefined. */
export const earlyOf = <T>(path: string): Promise<Answer<T> | null> | undefined => running.get(path) as Promise<Answer<T> | null> | undefined;

/** Return whether an early answer has just arrived, the first time that it is asked. */
export const takeFresh = (path: string): boolean => {
  const at = arrived.get(path);
  arrived.delete(path);
  return at !== undefined && cached(path)?.at === at && Date.now() - at < FRESH_MS;
};

/** Request a path as soon as the page is shown, without waiting for what comes before its place. Null requests nothing. */
export const useEarly = (path: string | null): void => {
  useEffect(() => {
    if (path !== null && !document.hidden) requestEarly(path);
  }, [path]);
};
