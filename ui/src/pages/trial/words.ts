/** Sentences about a trial. */
import { type Attempt, type Trial } from "../../api/trial";
import { plural } from "../../format/numbers";

export const ENDED = new Set(["completed", "errored", "killed", "stopped"]);

/** Return numbers as ranges: 0-3, 5. */
export const ranges = (numbers: readonly number[]): string => {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const parts: [number, number][] = [];
  for (const number of sorted) {
    const last = parts[parts.length - 1];
    if (last !== undefined && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([from, to]) => (from === to ? String(from) : `${from}-${to}`)).join(", ");
};

/** Hosts that are named before the rest is counted. */
const NAMED = 4;

/** Return a placement in words: 8 slots on gpu-1 (0-3), gpu-2 (0-3). */
export const placementWords = (placement: Readonly<Record<string, readonly number[]>>): string | null => {
  const hosts = Object.entries(placement).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  if (hosts.length === 0) return null;
  const slots = hosts.reduce((sum, [, indices]) => sum + indices.length, 0);
  const named = hosts.slice(0, NAMED).map(([host, indices]) => `${host} (${ranges(indices)})`).join(", ");
  const rest = hosts.length - NAMED;
  return `${plural(slots, "slot")} on ${named}${rest > 0 ? ` and ${plural(rest, "further host")}` : ""}`;
};

/** Return the attempt that runs or waits now, else the last one. */
export const currentAttempt = ({ attempts_list }: Pick<Trial, "attempts_list">): Attempt | null =>
  attempts_list.reduce<Attempt | null>((last, attempt) => (last === null || attempt.number > last.number ? attempt : last), null);

const text = (value: unknown): string | null => (typeof value === "string" && value.trim() !== "" ? value.trim() : null);

/** Return the cause of a failure: its summary, and further lines. Records of failures differ by their kind. */
export const failureWords = (failure: Readonly<Record<string, unknown>> | null): { title: string; more: string | null } | null => {
  if (failure === null) return null;
  const title = text(failure.message) ?? text(failure.error) ?? text(failure.reason) ?? text(failure.cause) ?? text(failure.kind);
  if (title === null) return null;
  const where = [failure.rank === null || failure.rank === undefined ? null : `rank ${String(failure.rank)}`, text(failure.host)].filter(Boolean).join(" on ");
  const isNamed = where === "" || title.includes(text(failure.host) ?? where);
  const more = [isNamed ? null : `It happened in ${where}.`, text(failure.traceback), text(failure.log_tail)].filter(Boolean).join("\n");
  return { title: title.split("\n")[0] ?? title, more: more === "" ? null : more };
};

/** Names of signals by their number on Linux. */
const SIGNALS = new Map([[1, "SIGHUP"], [2, "SIGINT"], [6, "SIGABRT"], [7, "SIGBUS"], [8, "SIGFPE"], [9, "SIGKILL"], [11, "SIGSEGV"], [13, "SIGPIPE"], [15, "SIGTERM"], [24, "SIGXCPU"]]);

/** Return an exit code in words. */
export const exitWords = (code: number | null, sentSignal: boolean): string => {
  if (code === null) return "running, or unknown";
  if (code === 0) return "0, success";
  if (code > 0) return `${code}, failure`;
  const name = SIGNALS.get(-code) ?? `signal ${-code}`;
  const by = sentSignal ? ", sent by the supervisor" : code === -9 ? ", perhaps out of memory" : "";
  return `${name}${by}`;
};

// Colours and cursor movements of terminals.
// eslint-disable-next-line no-control-regex
const ESCAPES = /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007]*(?:\u0007|\u001b\\)/g;

/** Return lines of a log without the escape sequences of terminals. Of a line that was overwritten the last version stays. */
export const plainLog = (log: string): string =>
  log
    .replace(ESCAPES, "")
    .split("\n")
    .map((line) => {
      const trimmed = line.endsWith("\r") ? line.slice(0, -1) : line;
      return trimmed.slice(trimmed.lastIndexOf("\r") + 1);
    })
    .join("\n");
