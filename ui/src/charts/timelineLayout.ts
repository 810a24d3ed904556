/** Rows and places of the entries of a timeline. */

/** One entry, as the API sends it. */
export interface Entry {
  readonly at: string;
  readonly until: string | null;
  readonly kind: string;
  readonly attempt: number | null;
  readonly host: string | null;
  readonly text: string;
  readonly detail: unknown;
}

/** An entry with its place. */
export interface Placed {
  readonly entry: Entry;
  /** Seconds since 1970. */
  readonly fromS: number;
  /** Null for a moment. */
  readonly toS: number | null;
  /** Level within its row, from 0. Entries that overlap have different ones. */
  readonly level: number;
}

/** One row: an attempt, or a host of it. */
export interface Row {
  readonly attempt: number | null;
  readonly host: string | null;
  readonly label: string;
  readonly entries: readonly Placed[];
  readonly levels: number;
}

/** Kinds of entries that last. An entry of them without an end lasts until now. */
const LASTING = new Set(["granted", "launched", "waited"]);

const seconds = (at: string | null): number | null => {
  if (at === null) return null;
  const time = Date.parse(at);
  return Number.isNaN(time) ? null : time / 1000;
};

interface Span {
  entry: Entry;
  fromS: number;
  toS: number | null;
}

const placed = (spans: Span[], spare: number): Placed[] => {
  const ends: number[] = [];
  return spans.map((span) => {
    const free = ends.findIndex((end) => end <= span.fromS);
    const level = free < 0 ? ends.length : free;
    ends[level] = Math.max(span.toS ?? span.fromS, span.fromS) + spare;
    return { ...span, level };
  });
};

const label = (attempt: number | null, host: string | null): string => {
  if (host !== null) return host;
  return attempt === null ? "Trial" : `Attempt ${attempt}`;
};

const spanOf = (entry: Entry, nowS: number, active: boolean): Span | null => {
  const fromS = seconds(entry.at);
  if (fromS === null) return null;
  const until = seconds(entry.until) ?? (active && LASTING.has(entry.kind) ? nowS : null);
  // A clock that ran backwards gives an end before its start: the entry is shown as a moment.
  return { entry, fromS, toS: until !== null && until > fromS ? until : null };
};

/**
 * Return the rows of a timeline: first those of the trial, then each attempt with its hosts.
 *
 * @param active whether the trial still lives, so that entries without an end last until now
 * @param spare time that stays free behind an entry of a level, in seconds
 */
export const rowsOf = (entries: readonly Entry[], nowS: number, active: boolean, spare = 0): Row[] => {
  const groups = new Map<string, { attempt: number | null; host: string | null; spans: Span[] }>();
  for (const entry of entries) {
    const span = spanOf(entry, nowS, active);
    if (span === null) continue;
    const key = JSON.stringify([entry.attempt, entry.host]);
    const group = groups.get(key) ?? { attempt: entry.attempt, host: entry.host, spans: [] };
    group.spans.push(span);
    groups.set(key, group);
  }
  return [...groups.values()]
    .sort((a, b) => (a.attempt ?? -1) - (b.attempt ?? -1) || (a.host ?? "").localeCompare(b.host ?? "", "en", { numeric: true }))
    .map(({ attempt, host, spans }) => {
      const list = placed(spans.sort((a, b) => a.fromS - b.fromS), spare);
      return { attempt, host, label: label(attempt, host), entries: list, levels: Math.max(...list.map(({ level }) => level)) + 1 };
    });
};

/** Return the range of times of the rows, or null without an entry. */
export const rangeOf = (rows: readonly Row[]): [number, number] | null => {
  let [min, max] = [Infinity, -Infinity];
  for (const { entries } of rows) {
    for (const { fromS, toS } of entries) {
      min = Math.min(min, fromS);
      max = Math.max(max, toS ?? fromS);
    }
  }
  return min <= max ? [min, max] : null;
};
