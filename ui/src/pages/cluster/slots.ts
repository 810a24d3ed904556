/** Words and looks of slots. */
import { type Cluster, type Holder, type Host, type Slot } from "../../api/types";
import { plural } from "../../format/numbers";

/** A slot with its place. */
export interface Place {
  host: Host;
  index: number;
  slot: Slot;
  holder: Holder | null;
}

/** Return a slot by host and index, or null for one that has left the cluster in the meantime. */
export const placeOf = (cluster: Cluster, hostName: string, index: number): Place | null => {
  const host = cluster.hosts.find(({ name }) => name === hostName);
  const slot = host?.slots[index];
  if (host === undefined || slot === undefined) return null;
  return { host, index, slot, holder: holderOf(cluster, slot) };
};

/** Return the gang that holds a slot. */
export const holderOf = ({ holders }: Pick<Cluster, "holders">, { allocation_id }: Slot): Holder | null =>
  allocation_id === null || allocation_id === undefined ? null : (holders[String(allocation_id)] ?? null);

/** State of a slot as its square shows it: that it is held prevails, because a slot can be held and disabled at the same time. */
export const slotState = ({ allocation_id, is_enabled = true, state = "ready" }: Slot): string => {
  if (allocation_id !== null && allocation_id !== undefined) return "held";
  if (!is_enabled) return "disabled";
  return state === "ready" ? "free" : state;
};

/** Kind of a square: the state of its slot, of its gang where one holds it, or "unavailable" on a host that gets no gangs. */
export const kindOf = (host: Host, slot: Slot, holder: Holder | null): string => {
  const state = slotState(slot);
  if (state === "held") return holder?.state ?? "running";
  return state === "free" && (host.state ?? "ready") !== "ready" ? "unavailable" : state;
};

/** Kinds of squares with their words, in the order of the legend. */
export const KINDS: readonly { kind: string; words: string }[] = [
  { kind: "free", words: "free" },
  { kind: "running", words: "running" },
  { kind: "starting", words: "starting" },
  { kind: "stopping", words: "stopping" },
  { kind: "unavailable", words: "host gets no gangs" },
  { kind: "disabled", words: "disabled" },
  { kind: "busy_elsewhere", words: "busy with other processes" },
  { kind: "stuck", words: "left-over processes" },
];

/** Return the state of a slot in words. */
export const stateWords = ({ host, slot, holder }: Place): string => {
  const state = slotState(slot);
  if (state === "held") return `${holder?.state ?? "held"}${slot.is_enabled === false ? ", disabled afterwards" : ""}`;
  if (state === "free" && (host.state ?? "ready") !== "ready") return `free, but the host is ${host.state}`;
  return KINDS.find(({ kind }) => kind === state)?.words ?? state;
};

/** Return the gang that holds a slot in words. */
export const holderWords = ({ is_hidden, experiment, trial_id, trial_name, slots }: Holder): string => {
  if (is_hidden) return `a gang of a DAG that you may not read, ${plural(slots, "slot")}`;
  const trial = trial_id === null ? "" : `, trial ${trial_id}${trial_name === null ? "" : `: ${trial_name}`}`;
  return `${experiment}${trial}, ${plural(slots, "slot")}`;
};

/** Return a slot in one sentence, for screen readers. */
export const slotSentence = (place: Place): string =>
  `${place.host.name} slot ${place.index}: ${stateWords(place)}${place.holder === null ? "" : `, held by ${holderWords(place.holder)}`}`;
