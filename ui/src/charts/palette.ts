/** Colours of data. Texts, grids and borders have the colours of Airflow's theme, see `theme.ts`. */

export type Mode = "dark" | "light";

/**
 * Colours of lines, in the same order of hues in both modes: blue, orange, green, pink, amber, sky, red, violet. They were
 * chosen for the largest distance between any two under normal vision, protanopia, deuteranopia and tritanopia, with a
 * contrast of 3:1 to the page. `palette.test.ts` measures it.
 */
export const COLORS: Record<Mode, readonly string[]> = {
  light: ["#053078", "#e76705", "#639e90", "#b264eb", "#964800", "#24707b", "#5d1e24", "#7605c8"],
  dark: ["#064bff", "#fe920a", "#55c8ab", "#905a9b", "#fae767", "#92faec", "#d64134", "#b88aff"],
};

/** What a filled area says about a trial, a gang or a shard. */
export type Fill = "done" | "ending" | "failed" | "foreign" | "running" | "starting" | "waiting";

/**
 * Colours of filled squares and bars, which are as small as 12 pixels. They differ as those of lines do, which
 * `palette.test.ts` measures. `styles.css` has them as variables: `--dtrain-fill-done`.
 */
export const FILLS: Record<Mode, Readonly<Record<Fill, string>>> = {
  light: { running: "#152e79", starting: "#932fda", done: "#1c9c9c", ending: "#1c9c9c", foreign: "#662b00", failed: "#ff2b0a", waiting: "#cbd0d8" },
  dark: { running: "#85a7d6", starting: "#6b3df5", done: "#85ffd6", ending: "#85ffd6", foreign: "#e0a100", failed: "#bf2c22", waiting: "#30343b" },
};

/** Dashes that tell lines of one colour apart, in pixels. */
export const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

/** Look of one line. */
export interface Look {
  /** Index of the colour in `COLORS`. */
  readonly color: number;
  /** Index of the dash in `DASHES`. */
  readonly dash: number;
}

const SIZE = COLORS.light.length;

/** Return the look of a trial. It depends on the trial's number alone, so it is the same on each page. */
export const lookOfTrial = (number: number): Look => {
  const whole = Math.abs(Math.trunc(Number.isFinite(number) ? number : 0));
  return { color: whole % SIZE, dash: Math.floor(whole / SIZE) % DASHES.length };
};

/**
 * Return looks of the lines of one chart. No two are the same while there are looks left. Each keeps its colour if possible,
 * lines differ by colour while there are colours left, and by dash after that.
 */
export const distinctLooks = (numbers: readonly number[]): Look[] => {
  const used = new Set<string>();
  const take = (color: number, dash: number): Look | null => {
    if (used.has(`${color}/${dash}`)) return null;
    used.add(`${color}/${dash}`);
    return { color, dash };
  };
  const wanted = numbers.map(lookOfTrial);
  const kept = wanted.map(({ color }) => take(color, 0));
  return wanted.map(({ color }, index) => {
    let found = kept[index] ?? null;
    for (let dash = 0; found === null && dash < DASHES.length; dash += 1) {
      for (let step = 0; found === null && step < SIZE; step += 1) found = take(dash === 0 ? step : (color + step) % SIZE, dash);
    }
    return found ?? { color, dash: 0 };
  });
};

/** Return the look of the n-th of several series that have no number of their own. */
export const lookAt = (index: number): Look => lookOfTrial(index);

/** Stops of viridis. The end that would vanish in front of the page is left out. */
const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const RANGE: Record<Mode, readonly [number, number]> = { light: [0, 0.82], dark: [0.22, 1] };

const channels = (hex: string): [number, number, number] => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as [number, number, number];

const mixed = (stops: readonly string[], place: number): string => {
  const at = Math.min(1, Math.max(0, place)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(at));
  const [from, to] = [channels(stops[index] ?? "#000000"), channels(stops[index + 1] ?? "#000000")];
  const rest = at - index;
  return `rgb(${from.map((value, channel) => Math.round(value + ((to[channel] ?? 0) - value) * rest)).join(",")})`;
};

/** Return the colour of a place between 0 and 1 on a sequential scale. */
export const sequential = (place: number, mode: Mode): string => {
  const [from, to] = RANGE[mode];
  return mixed(VIRIDIS, from + (to - from) * (Number.isNaN(place) ? 0 : Math.min(1, Math.max(0, place))));
};

const DIVERGING: Record<Mode, readonly string[]> = {
  light: ["#2166ac", "#92c5de", "#f1f1f1", "#fdae61", "#b2182b"],
  dark: ["#4aa3ff", "#24527a", "#242428", "#a8530f", "#ffb454"],
};

/** Return the colour of a place between -1 (low) and 1 (high) on a scale around a neutral middle. */
export const diverging = (place: number, mode: Mode): string => mixed(DIVERGING[mode], (Math.min(1, Math.max(-1, place)) + 1) / 2);
