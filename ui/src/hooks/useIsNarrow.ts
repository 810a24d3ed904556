import { useSyncExternalStore } from "react";

/** Windows up to this width have no room for a table or for all facts: phones. */
const QUERY = "(max-width: 600px)";

const list = () => (typeof window.matchMedia === "function" ? window.matchMedia(QUERY) : null);

const subscribe = (changed: () => void) => {
  const media = list();
  media?.addEventListener("change", changed);
  return () => media?.removeEventListener("change", changed);
};

/** Return whether the window is as narrow as a phone, and render again when that changes. */
export const useIsNarrow = (): boolean => useSyncExternalStore(subscribe, () => list()?.matches ?? false);
