/** Answers that outlive a page: Airflow mounts the app again whenever the path changes. */
import { type Answer } from "./client";

const MOST = 120;

interface Entry {
  answer: Answer<unknown>;
  /** Time of the last confirmation, in milliseconds. */
  at: number;
}

const entries = new Map<string, Entry>();

/** Return the last answer of a path. */
export const cached = <T>(path: string): { data: T; etag: string | null; at: number } | null => {
  const entry = entries.get(path);
  return entry === undefined ? null : { ...(entry.answer as Answer<T>), at: entry.at };
};

/** Keep an answer, and forget the ones that were not used for longest. */
export const keep = (path: string, answer: Answer<unknown>, at: number): void => {
  entries.delete(path);
  entries.set(path, { answer, at });
  for (const oldest of entries.keys()) {
    if (entries.size <= MOST) break;
    entries.delete(oldest);
  }
};

/** Forget the answers whose path begins with a text, after an action has changed them. */
export const forget = (prefix = ""): void => {
  for (const path of [...entries.keys()]) if (path.startsWith(prefix)) entries.delete(path);
};
