import { type Host } from "../../api/types";
import { LINE } from "./SlotSquares";

/** A square by host and index. */
export interface At {
  host: string;
  index: number;
}

/**
 * Return the square that a key leads to, or null for another key and at an edge.
 *
 * @param perRow hosts beside each other
 */
export const neighbour = (hosts: readonly Host[], at: At, key: string, perRow: number): At | null => {
  const place = hosts.findIndex(({ name }) => name === at.host);
  const here = hosts[place];
  if (here === undefined) return null;
  const to = (host: Host | undefined, index: number): At | null =>
    host === undefined || host.slots.length === 0 ? null : { host: host.name, index: Math.max(0, Math.min(host.slots.length - 1, index)) };
  switch (key) {
    case "ArrowRight":
      return at.index + 1 < here.slots.length ? to(here, at.index + 1) : to(hosts[place + 1], 0);
    case "ArrowLeft":
      return at.index > 0 ? to(here, at.index - 1) : to(hosts[place - 1], Number.MAX_SAFE_INTEGER);
    case "ArrowDown":
      return at.index + LINE < here.slots.length ? to(here, at.index + LINE) : to(hosts[place + perRow], at.index % LINE);
    case "ArrowUp":
      return at.index >= LINE ? to(here, at.index - LINE) : to(hosts[place - perRow], at.index);
    case "Home":
      return to(hosts[0], 0);
    case "End":
      return to(hosts.at(-1), Number.MAX_SAFE_INTEGER);
    default:
      return null;
  }
};
