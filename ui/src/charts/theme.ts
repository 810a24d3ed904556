/** Colours of charts from Airflow's theme, for canvases. They change with its colour mode. */
import { useSyncExternalStore } from "react";

import { type Mode } from "./palette";

/** Meaning of a colour in a timeline. */
export type KindColor = "bad" | "holding" | "neutral" | "running" | "saved" | "waiting";

export interface ChartColors {
  readonly mode: Mode;
  readonly bg: string;
  readonly fg: string;
  readonly muted: string;
  readonly grid: string;
  readonly border: string;
  readonly brand: string;
  readonly failed: string;
  readonly success: string;
  readonly warning: string;
  readonly font: string;
  readonly kinds: Readonly<Record<KindColor, string>>;
}

/** Colours of a timeline. They also differ in lightness; neutral is the colour of secondary text. */
const KINDS: Record<Mode, Omit<Record<KindColor, string>, "neutral">> = {
  light: { waiting: "#c9bda9", holding: "#8fb6c9", running: "#2a768c", saved: "#023481", bad: "#de6907" },
  dark: { waiting: "#5c5140", holding: "#2d5a6e", running: "#47b5c9", saved: "#b3d0ff", bad: "#f68c11" },
};

/** Token of the theme, and the colour where the theme has none: other versions of Airflow, tests. */
const TOKENS = {
  bg: ["bg", "#ffffff", "#000000"],
  fg: ["fg", "#000000", "#fafafa"],
  muted: ["fg-muted", "#52525b", "#a1a1aa"],
  grid: ["border", "#e4e4e7", "#27272a"],
  border: ["border-emphasized", "#d4d4d8", "#3f3f46"],
  brand: ["brand-solid", "#0072b2", "#56b4e9"],
  failed: ["failed-solid", "#b91c1c", "#ef4444"],
  success: ["success-solid", "#15803d", "#22c55e"],
  warning: ["fg-warning", "#c2410c", "#fdba74"],
} as const;

const read = (mode: Mode): ChartColors => {
  const style = getComputedStyle(document.documentElement);
  const token = (name: string, fallback: string) => style.getPropertyValue(`--chakra-${name}`).trim() || fallback;
  const colors = Object.fromEntries(
    Object.entries(TOKENS).map(([name, [path, light, dark]]) => [name, token(`colors-${path}`, mode === "dark" ? dark : light)]),
  ) as Record<keyof typeof TOKENS, string>;
  return { ...colors, mode, font: token("fonts-body", "sans-serif"), kinds: { ...KINDS[mode], neutral: colors.muted } };
};

const modeOf = (): Mode => (document.documentElement.classList.contains("dark") ? "dark" : "light");

let current: ChartColors | null = null;
let observer: MutationObserver | null = null;
const listeners = new Set<() => void>();

/** Return the colours of the present mode. */
export const chartColors = (): ChartColors => (current ??= read(modeOf()));

const subscribe = (changed: () => void) => {
  listeners.add(changed);
  if (observer === null) {
    observer = new MutationObserver(() => {
      current = read(modeOf());
      listeners.forEach((listener) => listener());
    });
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
  }
  return () => {
    listeners.delete(changed);
    if (listeners.size > 0) return;
    observer?.disconnect();
    observer = null;
    current = null;
  };
};

/** Return the colours of charts, and render again when the user changes the colour mode. */
export const useChartColors = (): ChartColors => useSyncExternalStore(subscribe, chartColors);
