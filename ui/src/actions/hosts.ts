/** Actions on hosts and slots. */
import { ApiError, send } from "../api/client";
import { type Host, type Slot } from "../api/types";
import { type Action } from "./ask";

const REASON = { label: "Reason", help: "All users see it beside the host.", kind: "text" as const };

const DEADLINE = { label: "Empty by", help: "A time (22:00) or a length (90m, 2h) from now. Empty: at once.", kind: "text" as const };

const UNITS: Record<string, number> = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/**
 * Return the time that a text means: 22:00 is the next one, in the zone of the browser. Null: at once.
 *
 * @throws ApiError for another text
 */
export const deadline = (text: string, now: Date): Date | null => {
  if (text === "") return null;
  const [, hour, minute] = /^(\d{1,2}):(\d{2})$/.exec(text) ?? [];
  if (hour !== undefined && Number(hour) < 24 && Number(minute) < 60) {
    const at = new Date(now);
    at.setHours(Number(hour), Number(minute), 0, 0);
    if (at <= now) at.setDate(at.getDate() + 1);
    return at;
  }
  const [, count, unit] = /^(\d{1,6})([smhd])$/.exec(text) ?? [];
  if (count !== undefined && unit !== undefined) return new Date(now.getTime() + Number(count) * (UNITS[unit] ?? 0));
  throw new ApiError("server", 0, `A deadline is a time (22:00) or a length (90m, 2h), not "${text}".`);
};

const post = (path: string, body?: unknown) => send<{ message: string }>("POST", path, body);

/** Return the actions that the state of a host allows. */
export const hostActions = ({ name, state = "ready", job = null }: Host): Action[] => {
  // A scheduler decides about the nodes of its jobs.
  if (job !== null) return [];
  const path = `hosts/${encodeURIComponent(name)}`;
  const actions: Action[] = [];
  if (state !== "disabled" && state !== "draining" && state !== "drained") {
    actions.push({
      id: "drain", label: "Drain", icon: "pause", verb: "Drain", title: `Drain host ${name}`, question: REASON,
      text: "The host gets no new gangs. Gangs that run there continue until they end.",
      run: (reason) => post(`${path}/drain`, { reason }),
    });
  }
  if (state !== "disabled" && state !== "drained") {
    actions.push({
      id: "evacuate", label: "Evacuate", icon: "clock", verb: "Evacuate", title: `Evacuate host ${name}`, question: DEADLINE,
      text: "The host gets no new gangs. Gangs that can resume save a checkpoint and continue on other hosts. Other gangs stay until they end.",
      run: (text) => {
        const by = deadline(text, new Date());
        return post(`${path}/drain`, by === null ? { now: true } : { by: by.toISOString() });
      },
    });
  }
  if (state !== "ready") {
    actions.push({
      id: "enable", label: "Enable", icon: "play", verb: "Enable", title: `Enable host ${name}`,
      text: "The host gets gangs again as soon as it answers.",
      run: () => post(`${path}/enable`),
    });
  }
  if (state !== "disabled") {
    actions.push({
      id: "disable", label: "Disable", icon: "ban", verb: "Disable", dangerous: true, title: `Disable host ${name}`, question: REASON,
      text: "The host gets no gangs until a user enables it.",
      run: (reason) => post(`${path}/disable`, { reason }),
    });
  }
  return actions;
};

/** Return the actions that the state of a slot allows. */
export const slotActions = (host: string, index: number, { allocation_id = null, is_enabled = true }: Slot): Action[] => {
  const path = `hosts/${encodeURIComponent(host)}/slots/${index}`;
  const name = `slot ${index} of host ${host}`;
  if (!is_enabled) {
    return [
      {
        id: "enable", label: "Enable", icon: "play", verb: "Enable", title: `Enable ${name}`, text: "The slot can be granted again.",
        run: () => post(`${path}/enable`),
      },
    ];
  }
  const text = allocation_id !== null ? "The gang that holds the slot keeps it until its end. No other gang gets it afterwards." : "The slot is not granted until a user enables it.";
  return [{ id: "disable", label: "Disable", icon: "ban", verb: "Disable", dangerous: true, title: `Disable ${name}`, text, run: () => post(`${path}/disable`) }];
};
