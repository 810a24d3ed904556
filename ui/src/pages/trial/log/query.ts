/** The search in a log as the address of the page holds it. */
import { type Query } from "../../../api/client";
import { type LogLine, type LogPlace } from "../../../api/logs";
import { type TimelineEntry } from "../../../api/trial";
import { instant } from "../../../format/times";

export const LEVELS = ["debug", "info", "warning", "error"] as const;

/** Ranks beside each other. */
export const RANKS_MOST = 4;

export const USUAL_LOG = {
  ranks: ["0"] as readonly string[], attempt: 0, grep: "", regex: false, level: "", since: "", until: "", line: 0, at: "",
};

export type LogView = typeof USUAL_LOG;

/** Return the ranks of an address, at most four. */
export const ranksOf = (ranks: readonly string[]): number[] => {
  const numbers = ranks.filter((text) => /^\d{1,9}$/.test(text)).map(Number);
  const found = [...new Set(numbers)].slice(0, RANKS_MOST);
  return found.length === 0 ? [0] : found;
};

/** Return a time in the form in which the API reads it, null for a text that is none. */
export const asTime = (text: string): string | null => {
  const at = instant(text);
  return at === null ? null : new Date(at).toISOString();
};

/** Return the parameters of a search, null if each line is shown. */
export const searchOf = ({ grep, regex, level, since, until }: Pick<LogView, "grep" | "level" | "regex" | "since" | "until">): Query | null => {
  const query = {
    text: grep, regex: grep !== "" && regex, since: asTime(since), until: asTime(until),
    level: LEVELS.find((one) => one === level) ?? null,
  };
  return query.text === "" && query.level === null && query.since === null && query.until === null ? null : query;
};

export const placeOf = ({ rank, attempt }: LogPlace): Query => ({ rank, attempt });

/** Kinds of entries of the timeline that are beside the lines of their time. */
const MARKED: ReadonlySet<TimelineEntry["kind"]> = new Set([
  "launched", "first_step", "warned", "slow_rank", "checkpoint", "rung", "give_way", "evacuated", "stop_requested",
  "kill_requested", "rank_failed", "preempted", "ended",
]);

/** Return the entries of a timeline that happened between two lines. */
export const marksBetween = (entries: readonly TimelineEntry[], before: LogLine | undefined, line: LogLine): TimelineEntry[] => {
  const [from, to] = [instant(before?.at), instant(line.at)];
  if (from === null || to === null || from === to) return [];
  return entries.filter(({ at, kind }) => {
    const when = instant(at);
    return when !== null && when > from && when <= to && MARKED.has(kind);
  });
};
