/** Rows and bars of timelines on slots: the trials of an experiment, or what hosts did. */

/** An attempt with its slots, as the API sends it. */
export interface SlotSpan {
  readonly trial_id: number;
  readonly number: number;
  readonly state: string;
  readonly attempt: number;
  readonly attempt_state: string;
  readonly granted_at: string;
  readonly started_at: string | null;
  readonly ended_at: string | null;
  readonly placement: Readonly<Record<string, readonly number[]>>;
}

/** The bar of an attempt on neighbouring rows. */
export interface Bar<S> {
  readonly span: S;
  /** First row, from 0, and number of rows. Where several slots share a row, parts of one. */
  readonly row: number;
  readonly rows: number;
  /** Seconds since 1970. */
  readonly fromS: number;
  /** When its ranks ran; the end if they never did. */
  readonly startS: number;
  readonly toS: number;
}

export interface SlotRows<S> {
  /** Names of the rows, from top to bottom. */
  readonly labels: readonly string[];
  /** Rows of each label; without it, each label has one. */
  readonly sizes?: readonly number[];
  /** Number of slots behind a row: 1, or those of a host. */
  readonly isByHost: boolean;
  readonly bars: readonly Bar<S>[];
}

/** Rows up to which each slot has one of its own. */
const MOST_ROWS = 120;

export const seconds = (at: string | null): number | null => {
  const time = at === null ? Number.NaN : Date.parse(at);
  return Number.isNaN(time) ? null : time / 1000;
};

/** Rows that belong to one label. */
export interface Band {
  readonly text: string;
  /** First row, from 0. */
  readonly row: number;
  readonly rows: number;
}

/** Return the rows of each label. */
export const bandsOf = ({ labels, sizes }: Pick<SlotRows<unknown>, "labels" | "sizes">): Band[] => {
  let row = 0;
  return labels.map((text, index) => {
    const band = { text, row, rows: sizes?.[index] ?? 1 };
    row += band.rows;
    return band;
  });
};

export const byName = (a: string, b: string) => a.localeCompare(b, "en", { numeric: true });

/** Return runs of neighbouring numbers: [1, 2, 5] has the runs [1, 2] and [5, 1], each with its length. */
export const runsOf = (rows: readonly number[]): [first: number, length: number][] => {
  const found: [number, number][] = [];
  for (const row of [...new Set(rows)].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last !== undefined && last[0] + last[1] === row) last[1] += 1;
    else found.push([row, 1]);
  }
  return found;
};

/**
 * Return a row per slot that the spans name, or per host if there are too many slots, and the bars on them.
 *
 * @param nowS end of attempts that have not ended
 */
export const slotRows = <S extends SlotSpan>(spans: readonly S[], nowS: number): SlotRows<S> => {
  const slots = new Map<string, Set<number>>();
  for (const { placement } of spans) {
    for (const [host, indices] of Object.entries(placement)) {
      const of = slots.get(host) ?? new Set<number>();
      slots.set(host, of);
      indices.forEach((index) => of.add(index));
    }
  }
  const hosts = [...slots.keys()].sort(byName);
  const isByHost = [...slots.values()].reduce((sum, of) => sum + of.size, 0) > MOST_ROWS;
  const labels: string[] = [];
  const rowOf = new Map<string, number>();
  for (const host of hosts) {
    // A host without numbered slots, such as a node whose scheduler counts them, has one row.
    const indices = [...(slots.get(host) ?? [])].sort((a, b) => a - b);
    for (const index of isByHost || indices.length === 0 ? [-1] : indices) {
      rowOf.set(`${host} ${index}`, labels.length);
      labels.push(index < 0 ? host : `${host} slot ${index}`);
    }
  }
  const bars = spans.flatMap((span) => {
    const fromS = seconds(span.granted_at);
    if (fromS === null) return [];
    const toS = Math.max(fromS, seconds(span.ended_at) ?? nowS);
    const startS = Math.min(toS, Math.max(fromS, seconds(span.started_at) ?? toS));
    const rows = Object.entries(span.placement).flatMap(([host, indices]) => (isByHost || indices.length === 0 ? [-1] : indices).map((index) => rowOf.get(`${host} ${index}`) ?? -1));
    return runsOf(rows.filter((row) => row >= 0)).map(([row, number]): Bar<S> => ({ span, row, rows: number, fromS, startS, toS }));
  });
  return { labels, isByHost, bars };
};

/** Return the bar at a place: the one that began last, because a later attempt is painted over an earlier one. */
export const barAt = <S>(bars: readonly Bar<S>[], row: number, atS: number, spareS: number): Bar<S> | null =>
  bars.findLast((bar) => row >= bar.row && row < bar.row + bar.rows && atS >= bar.fromS - spareS && atS <= bar.toS + spareS) ?? null;

/** Return the range of times of the bars, or null without any. */
export const rangeOfBars = (bars: readonly Pick<Bar<unknown>, "fromS" | "toS">[]): [number, number] | null => {
  let [min, max] = [Infinity, -Infinity];
  for (const { fromS, toS } of bars) [min, max] = [Math.min(min, fromS), Math.max(max, toS)];
  return min <= max ? [min, max] : null;
};

/** Return the share of the slots' time within the range that attempts held, from 0 to 1. */
export const usedShare = (spans: readonly SlotSpan[], nowS: number): number | null => {
  const rows = new Set(spans.flatMap(({ placement }) => Object.entries(placement).flatMap(([host, indices]) => indices.map((index) => `${host} ${index}`)))).size;
  const times = spans.map((span) => ({ fromS: seconds(span.granted_at) ?? nowS, toS: seconds(span.ended_at) ?? nowS, slots: Object.values(span.placement).flat().length }));
  const range = rangeOfBars(times);
  if (range === null || rows === 0 || range[1] <= range[0]) return null;
  const held = times.reduce((sum, { fromS, toS, slots }) => sum + slots * Math.max(0, toS - fromS), 0);
  return Math.min(1, held / rows / (range[1] - range[0]));
};
