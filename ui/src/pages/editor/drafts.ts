/** Texts that were edited and not started. They survive a change of the page, until the browser's tab is closed. */

const keyOf = (fork: number | null): string => `dtrain draft ${fork ?? "new"}`;

/** Return the draft of a fork or of a new experiment. */
export const draftOf = (fork: number | null): string | null => {
  try {
    return sessionStorage.getItem(keyOf(fork));
  } catch {
    return null;
  }
};

/** Keep a draft, or forget it. A browser without storage keeps none. */
export const keepDraft = (fork: number | null, text: string | null): void => {
  try {
    if (text === null) sessionStorage.removeItem(keyOf(fork));
    else sessionStorage.setItem(keyOf(fork), text);
  } catch {
    // The text is still in the page.
  }
};
