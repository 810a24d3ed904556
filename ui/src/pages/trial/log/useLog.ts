import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { ApiError, fetchData, type Query, withQuery } from "../../../api/client";
import { copyLog, type LogLine, type LogLines, type LogMatches, type LogPlace } from "../../../api/logs";
import { LIVE_MS } from "../../../hooks/useData";
import { outcomeOf, type Outcome, usePoll } from "../../../hooks/usePoll";
import { placeOf } from "./query";

/** Lines of one request. */
const LINES = 200;
/** Lines that stay in memory. */
const KEPT = 20_000;
/** Pause before the lines at a new place are requested, so that a drag of the scroll bar requests few. */
const SETTLE_MS = 60;
/** Pause between two copies of a log that grows. */
const COPY_MS = 4_000;
const asError = (thrown: unknown): ApiError => (thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown)));

const pathOf = (place: LogPlace, query: Query): string => withQuery(`trials/${place.trialId}/log/lines`, { ...placeOf(place), ...query });

/** A log, of which the lines near the visible ones are loaded. */
export interface Log {
  /** State of the attempt and extent of the log; undefined until the first answer. */
  known: LogLines | undefined;
  error: ApiError | null;
  /** Number of lines: those from the beginning on that the store has, and those of its end. */
  count: number;
  /** Lines of the end that do not follow the others: lines between them are on the host only. */
  apart: boolean;
  at: (index: number) => LogLine | undefined;
  /** Load lines that are visible. */
  show: (first: number, last: number) => void;
  /** Return the index of the first line that was written at a time or later. */
  find: (at: string, signal: AbortSignal) => Promise<number | null>;
  refresh: () => void;
}

/** Lines by their number. The ones that were added first are forgotten first. */
const addLines = (lines: Map<number, LogLine>, rows: readonly LogLine[]): void => {
  for (const row of rows) {
    if (row.number === null) continue;
    lines.delete(row.number);
    lines.set(row.number, row);
  }
  for (const number of lines.keys()) {
    if (lines.size <= KEPT) break;
    lines.delete(number);
  }
};

interface Loaded {
  known: LogLines | undefined;
  error: ApiError | null;
  /** Rises with each change of the loaded lines. */
  version: number;
  /** Index of the line with which the log begins; null: with its end. */
  begun: number | null;
}

/**
 * Load a log: first the place where its reader begins, then what becomes visible, and what its program adds.
 *
 * @param place is always the same
 */
export const useLog = (place: LogPlace, begin: { line: number; at: string | null }): Log & { begun: number | null } => {
  const { trialId, rank, attempt } = place;
  const [map] = useState(() => new Map<number, LogLine>());
  const [state, setState] = useState<Loaded>({ known: undefined, error: null, version: 0, begun: null });
  const { known, version, begun } = state;
  const last = useRef<{ path: string; etag: string | null } | null>(null);
  const put = (answer: LogLines, start: number | null) => {
    addLines(map, answer.rows);
    setState((old) => ({ known: answer, error: null, version: old.version + 1, begun: old.begun ?? start }));
  };
  const call = async (signal: AbortSignal): Promise<Outcome> => {
    try {
      const { line, at } = begin;
      const isFirst = known === undefined;
      const start = line > 0 ? Math.max(0, line - 1 - LINES / 2) : -LINES;
      const query = isFirst ? { first: start, at: line > 0 ? null : at, count: LINES } : { first: -1, count: 1 };
      const path = pathOf(place, { ...query, tail: true });
      const answer = await fetchData<LogLines>(path, last.current?.path === path ? last.current.etag : null, signal);
      if (answer === null) return "again";
      last.current = { path, etag: answer.etag };
      put(answer.data, isFirst ? (line > 0 ? line - 1 : at === null ? null : answer.data.first) : null);
      return answer.data.is_over && (answer.data.is_complete || answer.data.attempt < answer.data.latest) ? "stop" : "again";
    } catch (thrown) {
      const error = asError(thrown);
      if (error.code === "aborted") return "stop";
      setState((old) => ({ ...old, error }));
      return outcomeOf(error);
    }
  };
  const restart = usePoll(`log ${trialId} ${rank} ${attempt ?? ""}`, LIVE_MS, call);
  const total = known?.total ?? 0;
  const tail = useMemo(() => known?.tail ?? [], [known]);
  const missing = useRef<{ timer?: ReturnType<typeof setTimeout>; controller?: AbortController; page: number | null }>({ page: null });
  useEffect(() => {
    const { current } = missing;
    return () => {
      clearTimeout(current.timer);
      current.controller?.abort();
      current.page = null;
    };
  }, []);
  const show = useCallback((from: number, to: number) => {
    let index = Math.max(0, from);
    while (index < Math.min(to, total) && map.has(index)) index += 1;
    if (index >= Math.min(to, total)) return;
    const { current } = missing;
    const page = Math.floor(index / LINES) * LINES;
    if (current.page === page) return;
    clearTimeout(current.timer);
    current.controller?.abort();
    current.page = page;
    current.timer = setTimeout(() => {
      const controller = new AbortController();
      current.controller = controller;
      fetchData<LogLines>(pathOf({ trialId, rank, attempt }, { first: page, count: 2 * LINES }), null, controller.signal)
        .then((answer) => {
          if (answer === null) return;
          addLines(map, answer.data.rows);
          current.page = null;
          setState((old) => ({ ...old, version: old.version + 1 }));
        })
        .catch((thrown: unknown) => {
          const error = asError(thrown);
          if (error.code === "aborted") return;
          current.page = null;
          setState((old) => ({ ...old, error }));
        });
    }, SETTLE_MS);
  }, [map, total, trialId, rank, attempt]);
  const at = useCallback(
    (index: number) => (index < total ? map.get(index) : tail[index - total]),
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the version stands for the loaded lines.
    [map, total, tail, version],
  );
  const find = useCallback(
    async (when: string, signal: AbortSignal) => {
      const answer = await fetchData<LogLines>(pathOf({ trialId, rank, attempt }, { at: when, count: LINES }), null, signal);
      if (answer === null || answer.data.total === 0) return null;
      addLines(map, answer.data.rows);
      return answer.data.first;
    },
    [map, trialId, rank, attempt],
  );
  const refresh = useCallback(() => restart.current(), [restart]);
  const apart = total > 0 && tail.length > 0 && tail[0]?.number === null;
  return { known, error: state.error, count: total + tail.length, apart, at, show, find, refresh, begun };
};

/** State of the copy of a log from its host into the store. */
export interface Copy {
  isRunning: boolean;
  /** The copy waits for the scheduler of Airflow, so it takes longer. */
  throughDag: boolean;
  /** Why the last one failed. */
  problem: string | null;
}

/**
 * Copy what the store does not have of a log from its host, and again while the log grows.
 *
 * @param isNeeded false: the store has the whole log
 */
export const useCopy = ({ trialId, rank, attempt }: LogPlace, isNeeded: boolean, isOver: boolean, done: () => void): Copy => {
  const [copy, setCopy] = useState<Copy>({ isRunning: false, throughDag: false, problem: null });
  const latest = useRef(done);
  useEffect(() => {
    latest.current = done;
  });
  const call = async (signal: AbortSignal): Promise<Outcome> => {
    try {
      setCopy((old) => ({ ...old, isRunning: true }));
      const problem = await copyLog({ trialId, rank, attempt }, signal, ({ through }) => setCopy((old) => ({ ...old, throughDag: through === "dag" })));
      setCopy({ isRunning: false, throughDag: false, problem });
      latest.current();
      // A host that is gone is not asked again by itself.
      return problem === null && !isOver ? "again" : "stop";
    } catch (thrown) {
      const error = asError(thrown);
      if (error.code === "aborted") return "stop";
      setCopy({ isRunning: false, throughDag: false, problem: error.message });
      return "stop";
    }
  };
  usePoll(isNeeded ? `copy ${trialId} ${rank} ${attempt ?? ""} ${isOver}` : null, COPY_MS, call);
  return copy;
};

/** Lines that a search has found so far. */
export interface Found {
  rows: readonly LogLine[];
  /** Number of the line up to which the log was searched, and number of its lines. */
  searched: number;
  total: number;
  isDone: boolean;
  /** Bytes that the store had when the search ended. */
  copied: number;
  problem: string | null;
  error: ApiError | null;
}

const NOTHING: Found = { rows: [], searched: 0, total: 0, isDone: false, copied: 0, problem: null, error: null };
/** Lines that a search loads before they are visible. */
const AHEAD = 300;

/**
 * Search a log from its first line on, as far as its reader scrolls.
 *
 * @param query null: nothing is searched
 * @param copied bytes that the store has; more of them continue a search that has ended
 */
export const useSearch = (place: LogPlace, query: Query | null, copied: number): Found & { show: (last: number) => void } => {
  const base = query === null ? null : withQuery(`trials/${place.trialId}/log/search`, { ...placeOf(place), ...query, count: 500 });
  const [state, setState] = useState<{ base: string | null; found: Found }>({ base, found: NOTHING });
  const [wanted, setWanted] = useState({ base, last: 0 });
  const found = state.base === base ? state.found : NOTHING;
  const needed = (wanted.base === base ? wanted.last : 0) + AHEAD;
  const isDue = base !== null && found.error === null && found.problem === null && found.rows.length < needed && (!found.isDone || copied > found.copied);
  const call = async (signal: AbortSignal): Promise<Outcome> => {
    if (base === null) return "stop";
    let current = found;
    try {
      while (current.rows.length < needed) {
        const answer = await fetchData<LogMatches>(`${base}&first=${current.searched}`, null, signal);
        if (answer === null) return "stop";
        const { data } = answer;
        // Lines of the end have numbers only if they follow the others. They are searched again once they are copied.
        const numbered = data.rows.filter(({ number }) => number === null || number < data.total || data.is_over);
        current = {
          rows: [...current.rows.filter(({ number }) => number !== null && number < current.total), ...numbered],
          searched: data.next ?? data.total, total: data.total, isDone: data.next === null, copied, problem: data.problem, error: null,
        };
        const shown = current;
        setState({ base, found: shown });
        if (data.next === null) break;
      }
    } catch (thrown) {
      const error = asError(thrown);
      if (error.code !== "aborted") setState({ base, found: { ...current, isDone: true, error } });
    }
    return "stop";
  };
  usePoll(isDue ? `${base} ${found.isDone ? copied : ""} ${Math.floor(needed / AHEAD)}` : null, null, call);
  const show = useCallback((last: number) => setWanted((old) => (old.base === base && old.last >= last ? old : { base, last })), [base]);
  return { ...found, show };
};
