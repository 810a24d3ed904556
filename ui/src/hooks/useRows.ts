import { useCallback, useMemo, useState } from "react";

import { cached, keep } from "../api/cache";
import { ApiError, fetchData, type Query, withQuery } from "../api/client";
import { type Page } from "../api/types";
import { LIVE_MS } from "./useData";
import { outcomeOf, type Outcome, usePoll } from "./usePoll";

/** Rows of one request. */
const PAGE = 100;

/** Rows of a table whose sorting, filters and pages are the server's. */
export interface Rows<R, P extends Page<R> = Page<R>> {
  /** Number of rows on the server, 0 until the first answer. */
  total: number;
  /** Return a row by its place, or undefined while it is not loaded. */
  at: (index: number) => R | undefined;
  /** Tell which rows are visible: they are loaded and polled. */
  show: (first: number, last: number) => void;
  /** The answer that arrived last, for the values beside its rows. */
  answer: P | undefined;
  error: ApiError | null;
  loading: boolean;
  stale: boolean;
  refresh: () => void;
}

interface Loaded<P> {
  base: string;
  answer: P | undefined;
  error: ApiError | null;
  /** Rises with each change of the rows. */
  version: number;
}

const pathOf = (base: string, page: number): string =>
  `${base}${base.includes("?") ? "&" : "?"}limit=${PAGE}&offset=${page * PAGE}`;

/** Return a function that reads rows from the cache as it is now. */
const readerOf = <R, P extends Page<R>>(base: string) => {
  const pages = new Map<number, readonly R[] | undefined>();
  return (index: number): R | undefined => {
    const page = Math.floor(index / PAGE);
    if (!pages.has(page)) pages.set(page, cached<P>(pathOf(base, page))?.data.rows);
    return pages.get(page)?.[index % PAGE];
  };
};

/** Fetch the pages that are visible. Return the newest answer, and whether any page changed. */
const fetchPages = async <P>(base: string, first: number, last: number, signal: AbortSignal) => {
  const pages = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  const answers = await Promise.all(
    pages.map(async (page) => {
      const path = pathOf(base, page);
      const before = cached<P>(path);
      const answer = await fetchData<P>(path, before?.etag ?? null, signal);
      if (answer !== null) keep(path, answer, Date.now());
      return { data: answer?.data ?? before?.data, changed: answer !== null };
    }),
  );
  return { answer: answers.at(0)?.data, changed: answers.some(({ changed }) => changed) };
};

/** Load the visible rows of a long table, and poll them. */
export const useRows = <R, P extends Page<R> = Page<R>>(
  path: string | null,
  query: Query,
  { everyMs = LIVE_MS }: { everyMs?: number | null } = {},
): Rows<R, P> => {
  const base = path === null ? null : withQuery(path, query);
  const [range, setRange] = useState({ first: 0, last: 0 });
  const [state, setState] = useState<Loaded<P>>({ base: base ?? "", answer: undefined, error: null, version: 0 });
  // The table begins at its top when filter or sort change.
  const [asked, setAsked] = useState(base);
  if (asked !== base) {
    setAsked(base);
    setRange({ first: 0, last: 0 });
  }
  const call = async (signal: AbortSignal): Promise<Outcome> => {
    if (base === null) return "stop";
    try {
      const { answer, changed } = await fetchPages<P>(base, range.first, range.last, signal);
      setState((old) => {
        if (signal.aborted || (!changed && old.base === base && old.error === null && old.answer !== undefined)) return old;
        return { base, answer: answer ?? old.answer, error: null, version: old.version + 1 };
      });
      return "again";
    } catch (thrown) {
      const error = thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown));
      if (error.code === "aborted") return "stop";
      setState((old) => ({ ...old, error }));
      return outcomeOf(error);
    }
  };
  const restart = usePoll(base === null ? null : `${base} ${range.first}-${range.last}`, everyMs, call);
  // The first page may still be known from an earlier visit: it is shown at once.
  const remembered = base === null ? null : cached<P>(pathOf(base, 0));
  const current = remembered !== null && (state.base !== base || state.answer === undefined);
  const shownBase = current ? (base ?? "") : state.base;
  const answer = current ? remembered.data : state.answer;
  const { version } = state;
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the version stands for the content of the cache.
  const at = useMemo(() => readerOf<R, P>(shownBase), [shownBase, version]);
  const show = useCallback((first: number, last: number) => {
    const next = { first: Math.floor(Math.max(0, first) / PAGE), last: Math.floor(Math.max(0, last) / PAGE) };
    setRange((old) => (old.first === next.first && old.last === next.last ? old : next));
  }, []);
  const refresh = useCallback(() => restart.current(), [restart]);
  const loading = answer === undefined && state.error === null && base !== null;
  const stale = answer !== undefined && (state.error !== null || shownBase !== base);
  return { total: answer?.total ?? 0, at, show, answer, error: state.error, loading, stale, refresh };
};
