/** The dialog of actions. It lives in the frame of the page, so that it stays when the row of its button leaves the table. */
import { useSyncExternalStore } from "react";

import { type IconName } from "../components/icons";
import { type Question } from "../components/ConfirmDialog";
import { homeOf } from "./focusHome";

/** Something that a user can do, after a confirmation. */
export interface Action {
  id: string;
  /** Text in the menu. */
  label: string;
  icon: IconName;
  /** Title and text of the dialog. The text names the consequences. */
  title: string;
  text: string;
  /** Label of the button that acts. */
  verb: string;
  /** It cannot be undone. */
  dangerous?: boolean;
  question?: Question;
  /** Carry it out with the answer to the question. The result is shown in a corner of the page. */
  run: (value: string) => Promise<{ message: string }>;
}

/** Something that a user can do without a confirmation: it opens a page or a dialog of its own. */
export interface Shortcut {
  id: string;
  label: string;
  icon: IconName;
  dangerous?: false;
  open: () => void;
}

interface Asked {
  action: Action;
  onDone: () => void;
  /** Element that gets the focus afterwards. */
  from: Element | null;
  /** Gets the focus if that element has left the document. */
  home: HTMLElement | null;
}

let asked: Asked | null = null;
const listeners = new Set<() => void>();

const put = (next: Asked | null) => {
  asked = next;
  listeners.forEach((listener) => listener());
};

/**
 * Ask the user to confirm an action.
 *
 * @param from gets the focus when the dialog closes
 */
export const ask = (action: Action, onDone: () => void = () => undefined, from = document.activeElement): void => put({ action, onDone, from, home: homeOf(from) });

/** Close the dialog. */
export const dismiss = (): void => put(null);

const subscribe = (changed: () => void) => {
  listeners.add(changed);
  return () => listeners.delete(changed);
};

/** Return the action that waits for a confirmation. */
export const useAsked = (): Asked | null => useSyncExternalStore(subscribe, () => asked);
