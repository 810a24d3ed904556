/** Return the state that a badge shows: a request that can never run looks different from one that waits. */
export const shownState = ({ state, never_fits }: { state: string; never_fits: boolean }): string => (never_fits ? "never_fits" : state);

/** Choice of a filter by state for such requests. */
export const NEVER_FITS = "never_fits";
