/** What hosts did on a day: rows and bars of the chart, and words. */
import { type components } from "../../api/schema";
import { bandsOf, type Bar, byName, runsOf, seconds, type SlotRows } from "../../charts/slotTimeline";
import { type BarLooks } from "../../charts/SlotTimelineChart";
import { type Fill } from "../../charts/palette";
import { visible } from "../../lib/visible";
import { ranges } from "../trial/words";

type Schemas = components["schemas"];
export type HostDays = Schemas["HostDays"];
export type HostDay = Schemas["HostDay"];
type Work = Schemas["HostWork"];

/** One fact of a host with its time. */
export interface DayItem {
  readonly host: string;
  /** What it is, in words: "Trial 7 of resnet: completed". */
  readonly text: string;
  /** Slots that it held, empty for a fact about the host. */
  readonly slots: readonly number[];
  readonly from: string;
  /** Begin of its ranks, where it has ranks. */
  readonly started: string | null;
  /** Null: it lasts. */
  readonly until: string | null;
  readonly trialId: number | null;
  readonly fill: Fill;
  readonly isMoment: boolean;
}

/** Rows of one host up to which each slot has one of its own among many hosts. */
const LANES = 16;

const stateFill = (state: string): Fill => (state === "unreachable" || state === "lost" ? "failed" : "foreign");

const workText = ({ kind, trial_id, trial_state, name }: Work): string => {
  if (kind === "trial") return `Trial ${trial_id} of ${visible(name)}: ${trial_state}`;
  if (kind === "gang") return visible(name);
  return kind === "check" ? "Host check" : "Other work";
};

const workFill = ({ kind, trial_state, until }: Work): Fill => {
  if (kind === "other") return "waiting";
  if (kind !== "trial") return "starting";
  if (until === null) return "running";
  return trial_state === "errored" || trial_state === "killed" ? "failed" : "done";
};

const NOTES: Record<Schemas["HostNoteKind"], string> = { check: "Host check", slow_rank: "Slow rank" };

/** Return everything that a host did, by its time. */
export const itemsOf = ({ name: host, work, states, notes }: HostDay): DayItem[] =>
  [
    ...work.map((one): DayItem => ({ host, text: workText(one), slots: one.slots, from: one.since, started: one.kind === "trial" ? (one.started_at ?? null) : one.since, until: one.until, trialId: one.trial_id ?? null, fill: workFill(one), isMoment: false })),
    // A ready host is the usual case: what its slots did says more.
    ...states.filter(({ state }) => state !== "ready").map(({ state, reason, since, until }): DayItem => ({ host, text: `Host ${state}${reason === "" ? "" : `: ${visible(reason)}`}`, slots: [], from: since, started: since, until, trialId: null, fill: stateFill(state), isMoment: false })),
    ...notes.map(({ kind, at, until, text, is_slow, trial_id }): DayItem => ({ host, text: `${NOTES[kind]}: ${visible(text)}`, slots: [], from: at, started: at, until, trialId: trial_id ?? null, fill: is_slow ? "failed" : "done", isMoment: until === at })),
  ].sort((a, b) => a.from.localeCompare(b.from));

export const DAY_LOOKS: BarLooks<DayItem> = {
  fillOf: ({ fill }) => fill,
  textOf: ({ trialId, slots }) => (trialId === null || slots.length === 0 ? "" : String(trialId)),
  isMoment: ({ isMoment }) => isMoment,
  legend: [
    { fill: "running", text: "trial that holds its slots" },
    { fill: "done", text: "trial that ended; check without a finding" },
    { fill: "failed", text: "trial that failed; host unreachable or found slow" },
    { fill: "starting", text: "held gang, slots held by a check" },
    { fill: "waiting", text: "other work: of a DAG that you may not read" },
    { fill: "foreign", text: "host draining, drained or disabled" },
  ],
};

/**
 * Return the rows of hosts. The first row of a host has its states and checks, those below it have its slots.
 *
 * @param isWhole one host with a label per slot; else a label per host, whose rows are few
 */
export const dayRows = ({ hosts, since, until }: HostDays, isWhole: boolean): SlotRows<DayItem> => {
  const [sinceS, untilS] = [seconds(since) ?? 0, seconds(until) ?? 0];
  const ordered = [...hosts].sort((a, b) => byName(a.name, b.name));
  const lanes = ({ slots }: HostDay): number => (isWhole ? slots : Math.min(LANES, slots));
  // An empty row separates the hosts.
  const [labels, sizes] = isWhole
    ? [ordered.flatMap(({ slots }) => ["host", ...Array.from({ length: slots }, (_, slot) => `slot ${slot}`)]), undefined]
    : [ordered.map(({ name }) => visible(name)), ordered.map((host) => lanes(host) + 2)];
  const starts = isWhole ? [0] : bandsOf({ labels, sizes }).map(({ row }) => row + 0.5);
  const bars = ordered.flatMap((host, index) => {
    const [first, perSlot] = [starts[index] ?? 0, lanes(host) / Math.max(1, host.slots)];
    return itemsOf(host).flatMap((item): Bar<DayItem>[] => {
      const [from, start, to] = [seconds(item.from), seconds(item.started), seconds(item.until) ?? untilS];
      if (from === null) return [];
      const [fromS, toS] = [Math.max(sinceS, from), Math.min(untilS, Math.max(from, to))];
      if (toS < fromS) return [];
      const startS = Math.min(toS, Math.max(fromS, start ?? toS));
      const times = { span: item, fromS, startS, toS };
      if (item.slots.length === 0) return [{ ...times, row: first, rows: 1 }];
      return runsOf(item.slots.filter((slot) => slot < host.slots)).map(([slot, number]) => ({ ...times, row: first + 1 + slot * perSlot, rows: number * perSlot }));
    });
  });
  return { labels, ...(sizes === undefined ? {} : { sizes }), isByHost: false, bars };
};

/** Return the slots of an item in words: "slots 0-3". */
export const slotWords = ({ slots }: Pick<DayItem, "slots">): string => (slots.length === 0 ? "" : `slot${slots.length === 1 ? "" : "s"} ${ranges(slots)}`);

export interface Share {
  readonly held: number;
  readonly idle: number;
  readonly away: number;
}

/** Return the parts of the time of a host's slots, from 0 to 1, or null for a host without slots. */
export const sharesOf = ({ held_slot_s, idle_slot_s, away_slot_s }: HostDay): Share | null => {
  const whole = held_slot_s + idle_slot_s + away_slot_s;
  return whole > 0 ? { held: held_slot_s / whole, idle: idle_slot_s / whole, away: away_slot_s / whole } : null;
};

/** Return the hosts of a page, its number from 1, and the number of pages. */
export const hostPage = <T>(hosts: readonly T[], page: number, size: number): { shown: readonly T[]; page: number; pages: number } => {
  const pages = Math.max(1, Math.ceil(hosts.length / size));
  const at = Math.min(pages, Math.max(1, Math.trunc(page) || 1));
  return { shown: hosts.slice((at - 1) * size, at * size), page: at, pages };
};
