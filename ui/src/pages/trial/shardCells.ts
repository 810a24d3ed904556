/** Cells of the grid of shards: many shards share a cell. */
import { type Shards } from "../../api/trial";

export type ShardState = "done" | "running" | "waiting" | "failed" | "skipped";

/** Letter of the API -> state, the one that needs attention first. */
const STATES: readonly (readonly [string, ShardState])[] = [
  ["f", "failed"],
  ["s", "skipped"],
  ["r", "running"],
  ["w", "waiting"],
  ["d", "done"],
];

/** States in the order of the legend, with their words. */
export const SHARD_STATES: readonly { state: ShardState; words: string }[] = [
  { state: "done", words: "done" },
  { state: "running", words: "running" },
  { state: "waiting", words: "waiting" },
  { state: "failed", words: "failed" },
  { state: "skipped", words: "set aside" },
];

export interface ShardCell {
  /** First and last shard, from 0. */
  from: number;
  to: number;
  /** The state of its shards that needs attention first. */
  state: ShardState;
  title: string;
}

const wordsOf = (part: string): string =>
  STATES.map(([letter, state]) => [[...part].filter((one) => one === letter).length, state === "skipped" ? "set aside" : state] as const)
    .filter(([number]) => number > 0)
    .map(([number, state]) => (part.length === 1 ? state : `${number} ${state}`))
    .join(", ");

/** Return at most so many cells for the states of all shards, each with the same number of shards. */
export const shardCells = (states: string, most: number): ShardCell[] => {
  const size = Math.max(1, Math.ceil(states.length / most));
  return Array.from({ length: Math.ceil(states.length / size) }, (_, index) => {
    const from = index * size;
    const part = states.slice(from, from + size);
    const to = from + part.length - 1;
    const state = STATES.find(([letter]) => part.includes(letter))?.[1] ?? "waiting";
    return { from, to, state, title: `${from === to ? `Shard ${from}` : `Shards ${from} to ${to}`}: ${wordsOf(part)}` };
  });
};

/** Return the numbers of shards in words, for a reader without the picture. */
export const shardWords = (shards: Pick<Shards, ShardState | "total">): string =>
  `${shards.total} shards: ${SHARD_STATES.map(({ state }) => `${shards[state]} ${state === "skipped" ? "set aside" : state}`).join(", ")}`;
