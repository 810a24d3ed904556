import { useSyncExternalStore } from "react";

/** Key under which the Airflow UI keeps the time zone that the user chose. */
const KEY = "timezone";

const system = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone;

const valid = (zone: string): boolean => {
  try {
    return Boolean(new Intl.DateTimeFormat("en", { timeZone: zone }));
  } catch {
    return false;
  }
};

const parsed = (text: string | null): string => {
  try {
    const zone = JSON.parse(text ?? "null") as unknown;
    return typeof zone === "string" && valid(zone) ? zone : system();
  } catch {
    return system();
  }
};

// Each time on a page asks for the zone, so the answer to the last text is kept.
let last: { text: string | null; zone: string } | null = null;

/** Return the user's time zone, as set in the Airflow UI. */
export const timezone = (): string => {
  const text = localStorage.getItem(KEY);
  if (last === null || last.text !== text) last = { text, zone: parsed(text) };
  return last.zone;
};

// The Airflow UI sends "local-storage" in the tab of a change, the browser sends "storage" in all other tabs.
const subscribe = (changed: () => void) => {
  const events = ["storage", "local-storage"];
  events.forEach((name) => window.addEventListener(name, changed));
  return () => events.forEach((name) => window.removeEventListener(name, changed));
};

/** Return the user's time zone, and render again when the user changes it. */
export const useTimezone = (): string => useSyncExternalStore(subscribe, timezone);
