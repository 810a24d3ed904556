import { useEffect, useRef } from "react";

import { type ApiError } from "../api/client";

/** Longest pause between two requests while the server does not answer, in milliseconds. */
const LONGEST_MS = 30_000;

/** Return the pause before the next request: it doubles with each failure, and varies so that pages do not call at once. */
export const pauseMs = (everyMs: number, failures: number, random = Math.random()): number =>
  failures === 0 ? everyMs : Math.min(LONGEST_MS, everyMs * 2 ** failures) * (0.8 + 0.4 * random);

/** Result of one request: the polling continues, backs off, or stops. */
export type Outcome = "again" | "failed" | "stop";

/**
 * Call a function now, again after each pause, and at once when the browser shows the tab again.
 *
 * The polling stops while the tab is hidden and when the component is removed, and a running request is aborted then.
 * Null for the pause means one call. A new key starts over. A new pause counts from the end of the last call.
 */
export const usePoll = (key: string | null, everyMs: number | null, call: (signal: AbortSignal) => Promise<Outcome>) => {
  const latest = useRef(call);
  const restart = useRef<() => void>(() => undefined);
  const pause = useRef(everyMs);
  const reschedule = useRef<() => void>(() => undefined);
  useEffect(() => {
    latest.current = call;
  });
  useEffect(() => {
    if (pause.current === everyMs) return;
    pause.current = everyMs;
    reschedule.current();
  }, [everyMs]);
  useEffect(() => {
    if (key === null) return undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let controller: AbortController | null = null;
    let failures = 0;
    let last: Outcome | null = null;
    const stop = () => {
      clearTimeout(timer);
      controller?.abort();
      controller = null;
    };
    const run = async () => {
      stop();
      const own = new AbortController();
      controller = own;
      const outcome = await latest.current(own.signal);
      if (own.signal.aborted) return;
      controller = null;
      last = outcome;
      failures = outcome === "failed" ? failures + 1 : 0;
      schedule();
    };
    const schedule = () => {
      clearTimeout(timer);
      const next = pause.current ?? (last === "failed" ? 2_000 : null);
      if (last === null || last === "stop" || next === null || controller !== null || document.hidden) return;
      timer = setTimeout(() => void run(), pauseMs(next, failures));
    };
    const shown = () => {
      if (document.hidden) stop();
      else void run();
    };
    restart.current = () => void run();
    reschedule.current = schedule;
    document.addEventListener("visibilitychange", shown);
    if (!document.hidden) void run();
    return () => {
      document.removeEventListener("visibilitychange", shown);
      stop();
    };
  }, [key]);
  return restart;
};

/** Return the outcome that an error means for the polling. */
export const outcomeOf = (error: ApiError): Outcome => (error.passes ? "failed" : "stop");
