/** Axes of parallel coordinates and of scatter charts: values of hyperparameters as places from 0 to 1. */
import { labelTexts } from "./axisText";
import { extent, placeOf, type Scale, scaleOf, ticks, valueAt } from "./scales";

/** Place of a trial that lacks a value, below the axis: conditional hyperparameters are absent in some trials. */
export const ABSENT = -0.08;

/** One axis. */
export interface Dimension {
  readonly name: string;
  /** Null for an axis of categories. */
  readonly scale: Scale | null;
  /** Texts of the categories, from bottom to top. */
  readonly categories: readonly string[];
  /** Place of each trial, `ABSENT` without a value. */
  readonly places: Float32Array;
  /** Number of trials without a place. */
  readonly absent: number;
}

const isJson = (text: string): boolean => {
  try {
    JSON.parse(text);
  } catch {
    return false;
  }
  return true;
};

/** Return a value of any type as one line of text. A text has quotes if it would look like another value: "1" beside 1. */
export const textOf = (value: unknown): string => {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return isJson(value) ? JSON.stringify(value) : value;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
};

const isNumber = (value: unknown): value is number => typeof value === "number";

/** Return whether values need an axis of categories: one of them is neither a number nor absent. */
export const isCategorical = (values: readonly unknown[]): boolean => values.some((value) => value !== null && value !== undefined && !isNumber(value));

const numberIn = (text: string): number => Number(text.replaceAll('"', ""));

const byText = (a: string, b: string): number => {
  const [left, right] = [numberIn(a), numberIn(b)];
  return Number.isNaN(left) || Number.isNaN(right) ? a.localeCompare(b, "en") : left - right;
};

const categorical = (name: string, values: readonly unknown[], order: readonly unknown[]): Dimension => {
  const texts = values.map((value) => (value === null || value === undefined ? null : textOf(value)));
  const found = [...new Set(texts.filter((text): text is string => text !== null))].sort(byText);
  const known = order.map(textOf);
  const categories = [...new Set([...known, ...found])];
  const index = new Map(categories.map((text, at) => [text, (at + 0.5) / categories.length]));
  const places = Float32Array.from(texts, (text) => (text === null ? ABSENT : (index.get(text) ?? ABSENT)));
  return { name, scale: null, categories, places, absent: texts.filter((text) => text === null).length };
};

const numeric = (name: string, values: readonly unknown[], log: boolean): Dimension => {
  const numbers = values.map((value) => (isNumber(value) && Number.isFinite(value) ? value : null));
  const scale = scaleOf(extent([numbers], log), log, 0);
  let absent = 0;
  const places = Float32Array.from(numbers, (value) => {
    const place = placeOf(scale, value);
    if (!Number.isNaN(place)) return place;
    absent += 1;
    return ABSENT;
  });
  return { name, scale, categories: [], places, absent };
};

/**
 * Return the axis of values. Values with texts or booleans among them get an axis of categories.
 *
 * @param choices the values of a categorical, in the order of its axis; null for a range of numbers
 */
export const dimensionOf = (name: string, values: readonly unknown[], log: boolean, choices: readonly unknown[] | null = null): Dimension =>
  choices !== null || isCategorical(values) ? categorical(name, values, choices ?? []) : numeric(name, values, log);

/** Return whether a log axis suits: all values are positive, and the largest is at least 50 times the smallest. */
export const suitsLog = (values: readonly unknown[]): boolean => {
  if (isCategorical(values)) return false;
  const range = extent([values.map((value) => (isNumber(value) ? value : null))]);
  return range !== null && range[0] > 0 && range[1] / range[0] >= 50;
};

/** Return places and texts of the labels of an axis. */
export const labelsOf = (dimension: Dimension, most: number): { place: number; text: string }[] => {
  const { scale, categories } = dimension;
  if (scale !== null) {
    const values = ticks(scale, most);
    const texts = labelTexts(values, "number");
    return values.map((value, index) => ({ place: placeOf(scale, value), text: texts[index] ?? "" }));
  }
  const stride = Math.max(1, Math.ceil(categories.length / Math.max(1, most * 2)));
  return categories.map((text, index) => ({ place: (index + 0.5) / categories.length, text })).filter((_, index) => index % stride === 0);
};

/** Return the text of a place, for the ends of a brush. */
export const textAt = (dimension: Dimension, place: number): string => {
  const { scale, categories } = dimension;
  if (scale !== null) return labelTexts([valueAt(scale, Math.min(1, Math.max(0, place)))], "number")[0] ?? "";
  return categories[Math.min(categories.length - 1, Math.max(0, Math.floor(place * categories.length)))] ?? "";
};
