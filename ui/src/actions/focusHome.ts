/** The place that gets the focus when the element that has it leaves the document, such as the menu of a removed row. */

/** Attribute of an element that contains rows with menus. It or an element in it can be focused. */
export const FOCUS_HOME = { "data-focus-home": true } as const;

/** Return the home of an element that is in the document. */
export const homeOf = (element: Element | null): HTMLElement | null => element?.closest<HTMLElement>("[data-focus-home]") ?? null;

/** Return the element of a home that the Tab key reaches, else the home. Null: the home has left the document, too. */
export const entryOf = (home: HTMLElement | null): HTMLElement | null => (home?.isConnected === true ? (home.querySelector<HTMLElement>('[tabindex="0"]') ?? home) : null);
