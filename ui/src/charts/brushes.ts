/** Selection of trials by ranges on the axes of parallel coordinates. */

/** Range on an axis, in places from 0 to 1. A range that begins below 0 includes trials without a value. */
export type Range = readonly [number, number];

/** Ranges by the name of their axis. */
export type Brushes = Readonly<Record<string, Range>>;

interface Axis {
  readonly name: string;
  readonly places: Float32Array;
}

/** Return a mark per trial, 1 for the trials that lie within the ranges of all axes. */
export const selected = (axes: readonly Axis[], brushes: Brushes, total: number): Uint8Array => {
  const marks = new Uint8Array(total).fill(1);
  for (const { name, places } of axes) {
    const range = Object.hasOwn(brushes, name) ? brushes[name] : undefined;
    if (range === undefined) continue;
    for (let index = 0; index < total; index += 1) {
      const place = places[index] ?? Number.NaN;
      if (!(place >= range[0] && place <= range[1])) marks[index] = 0;
    }
  }
  return marks;
};

/** Return the number of marks that are set. */
export const countOf = (marks: Uint8Array): number => marks.reduce((sum, mark) => sum + mark, 0);

/** Smallest height of a range that a drag leaves; a smaller one is a click, which removes the range. */
export const SMALLEST = 0.015;

/** Return the ranges after a drag on an axis from one place to another. */
export const brushed = (brushes: Brushes, name: string, from: number, to: number): Brushes => {
  const rest = Object.fromEntries(Object.entries(brushes).filter(([key]) => key !== name));
  if (Math.abs(to - from) < SMALLEST) return rest;
  return { ...rest, [name]: [Math.max(-0.12, Math.min(from, to)), Math.min(1.02, Math.max(from, to))] };
};

/** Return the ranges with one moved by a distance, and kept on its axis. */
export const moved = (brushes: Brushes, name: string, by: number): Brushes => {
  const range = brushes[name];
  if (range === undefined) return brushes;
  const step = Math.max(-0.12 - range[0], Math.min(1.02 - range[1], by));
  return { ...brushes, [name]: [range[0] + step, range[1] + step] };
};

/** Return names with one moved to a place in the order. */
export const reordered = (names: readonly string[], name: string, to: number): string[] => {
  const rest = names.filter((item) => item !== name);
  rest.splice(Math.min(rest.length, Math.max(0, to)), 0, name);
  return rest;
};

/** Write ranges as text for the address of the page. */
export const asText = (brushes: Brushes): string[] =>
  Object.entries(brushes).map(([name, [low, high]]) => `${low.toFixed(3)},${high.toFixed(3)},${name}`);

/** Read ranges from the address of the page. Malformed ones are left out. */
export const fromText = (texts: readonly string[]): Brushes => {
  const pairs: [string, Range][] = [];
  for (const text of texts) {
    const [, low, high, name] = /^(-?[\d.]+),(-?[\d.]+),(.+)$/s.exec(text) ?? [];
    if (name === undefined || !(Number(low) < Number(high))) continue;
    pairs.push([name, [Number(low), Number(high)]]);
  }
  return Object.fromEntries(pairs);
};
