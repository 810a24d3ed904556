import { useCallback, useState } from "react";

import { cached, keep } from "../api/cache";
import { ApiError, fetchData } from "../api/client";
import { earlyOf, takeFresh } from "../api/early";
import { outcomeOf, type Outcome, usePoll } from "./usePoll";

/** Period of pages that show running trials, in milliseconds. */
export const LIVE_MS = 1_500;

/** Period of summaries over a whole attempt, which a second changes little, in milliseconds. */
export const SLOW_MS = 5_000;

/** Data of one route, and how current it is. */
export interface Loaded<T> {
  /** The newest data. It stays while the server does not answer, see `error`. */
  data: T | undefined;
  /** Error of the last request. */
  error: ApiError | null;
  /** Whether no data has arrived yet. */
  loading: boolean;
  /** Whether the data belongs to an earlier request, or cannot be confirmed at the moment. */
  stale: boolean;
  /** Time of the last confirmation, in milliseconds since 1970. */
  at: number | null;
  /** Request the data now. */
  refresh: () => void;
}

interface Options {
  /** Pause between two requests in milliseconds. Null requests the data once. */
  everyMs?: number | null;
  /** Show the data of the previous path until the new one answers. */
  keepPrevious?: boolean;
}

interface State<T> {
  path: string | null;
  data: T | undefined;
  error: ApiError | null;
  at: number | null;
}

const initial = <T>(path: string | null): State<T> => {
  const entry = path === null ? null : cached<T>(path);
  return { path, data: entry?.data, error: null, at: entry?.at ?? null };
};

/** Any error of the code itself is shown as well: a page never waits for data that cannot come. */
const asApiError = (error: unknown): ApiError =>
  error instanceof ApiError ? error : new ApiError("server", 0, error instanceof Error ? error.message : String(error));

/** Fetch data of a route and poll it. A null path requests nothing. */
export const useData = <T>(path: string | null, { everyMs = LIVE_MS, keepPrevious = false }: Options = {}): Loaded<T> => {
  const [state, setState] = useState<State<T>>(() => initial<T>(path));
  let current = state;
  if (state.path !== path) {
    const next = initial<T>(path);
    current = next.data === undefined && keepPrevious ? { ...state, path, error: null } : next;
    setState(current);
  }
  const call = async (signal: AbortSignal): Promise<Outcome> => {
    if (path === null) return "stop";
    const put = (change: (old: State<T>) => State<T>) => {
      setState((old) => (old.path === path ? change(old) : old));
    };
    const before = cached<T>(path);
    if (before !== null && takeFresh(path)) {
      // It may have arrived after the first render.
      put((old) => (old.data === before.data ? old : { ...old, data: before.data, error: null, at: before.at }));
      return "again";
    }
    try {
      const answer = await (earlyOf<T>(path) ?? fetchData<T>(path, before?.etag ?? null, signal));
      const newest = answer ?? before;
      if (newest === null) return "failed";
      const at = Date.now();
      keep(path, newest, at);
      put((old) => ({ ...old, data: newest.data, error: null, at }));
      return "again";
    } catch (thrown) {
      const error = asApiError(thrown);
      if (error.code === "aborted") return "stop";
      put((old) => ({ ...old, error }));
      return outcomeOf(error);
    }
  };
  const restart = usePoll(path, everyMs, call);
  const refresh = useCallback(() => {
    restart.current();
  }, [restart]);
  const mine = path === null ? null : cached<T>(path);
  return {
    data: current.data,
    error: current.error,
    loading: current.data === undefined && current.error === null && path !== null,
    stale: current.data !== undefined && (current.error !== null || mine?.data !== current.data),
    at: current.at,
    refresh,
  };
};
