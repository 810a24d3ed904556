/** Short names of trials that stand below each other: only what differs between them, the most telling value first. */

/** Separator of values in a row, and of their names above the rows. */
const BETWEEN = " · ";

interface Parsed {
  number: string;
  values: Map<string, string>;
}

/** Parts of a name such as "3 | lr=3e-4 bs=256", as the API makes it; null for a name that a user gave. */
const parsed = (name: string): Parsed | null => {
  const [, number, rest] = /^(\d+) \| (.+)$/s.exec(name) ?? [];
  if (number === undefined || rest === undefined) return null;
  const parts = rest.split(/ (?=[^ =]+=)/).map((part) => [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)] as const);
  return parts.some(([key]) => key === "") ? null : { number, values: new Map(parts) };
};

/** Return a name without the number of the trial in its experiment, which tells nothing beside its id. */
export const withoutNumber = (name: string): string => name.replace(/^\d+ \| /, "");

/** Names of rows, and the names of their values in the same order; empty: the rows have whole names. */
export interface ShortNames {
  heading: string;
  names: string[];
}

/**
 * Return the names of trials beside each other: number and values, without those that all of them share. Values that tell
 * the most trials apart are first. A trial with a name by a user keeps it.
 */
export const shortNames = (names: readonly string[]): ShortNames => {
  const found = names.map(parsed);
  const made = found.filter((one) => one !== null);
  const distinct = new Map<string, Set<string | undefined>>();
  for (const key of made.flatMap(({ values }) => [...values.keys()])) distinct.set(key, new Set(made.map(({ values }) => values.get(key))));
  const shown = [...distinct].filter(([, values]) => values.size > 1).sort(([, a], [, b]) => b.size - a.size).map(([key]) => key);
  if (shown.length === 0) return { heading: "", names: [...names] };
  const row = ({ number, values }: Parsed) => [number, ...shown.map((key) => values.get(key) ?? "–")].join(BETWEEN);
  return { heading: ["#", ...shown].join(BETWEEN), names: names.map((name, index) => (found[index] ? row(found[index]) : name)) };
};
