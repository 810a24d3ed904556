/** Media of trials: series by key, and what of them a slider shows. */
import { type components } from "../api/schema";

type Schemas = components["schemas"];

export type TrialMedia = Schemas["TrialMedia"];
export type MediaSeries = Schemas["MediaSeries"];
export type MediaItem = Schemas["MediaItem"];
export type MediaContent = Schemas["MediaContent"];
export type MediaTable = Schemas["MediaTable"];
export type MediaHistogram = Schemas["MediaHistogram"];
export type MediaMatrix = Schemas["MediaMatrix"];
export type MediaCurve = Schemas["MediaCurve"];

/** The slider of an address without a step: the latest one, also of a trial that goes on. */
export const LATEST = -1;

/** Return the steps of all series, in order. */
export const stepsOf = (media: readonly TrialMedia[]): number[] => {
  const steps = new Set(media.flatMap(({ series }) => series.flatMap(({ items }) => items.map(({ step }) => step))));
  return [...steps].sort((a, b) => a - b);
};

/** Return the keys of all trials, in order. */
export const keysOf = (media: readonly TrialMedia[]): string[] => [...new Set(media.flatMap(({ series }) => series.map(({ key }) => key)))].sort();

/** Return the place of the last step that is not behind the wanted one. */
export const placeOf = (steps: readonly number[], wanted: number): number => {
  if (wanted === LATEST) return steps.length - 1;
  const behind = steps.findIndex((step) => step > wanted);
  return behind === -1 ? steps.length - 1 : Math.max(0, behind - 1);
};

/** Return what a series has at a step: its latest report up to there. */
export const itemAt = (items: readonly MediaItem[], step: number): MediaItem | null => {
  const reached = items.filter((item) => item.step <= step);
  return reached[reached.length - 1] ?? null;
};
