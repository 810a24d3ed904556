/** Axes and colours of the charts of hyperparameters. */
import { type Hyperparameters } from "../../api/charts";
import { type Dimension, dimensionOf, suitsLog, textOf } from "../../charts/dimensions";
import { type Points } from "../../charts/lines";
import { number } from "../../format/numbers";
import { own } from "../../lib/own";

/** Axes that are shown until the user chooses others. */
const SHOWN = 8;

/** Return the names of the axes, the most important ones first. Constants are left out. */
export const usualAxes = ({ names, importance }: Pick<Hyperparameters, "importance" | "names">, most = SHOWN): string[] => {
  const weight = new Map(importance.map(({ name, value }) => [name, value]));
  return names
    .filter(({ kind }) => kind !== "const")
    .map(({ name }) => name)
    .sort((a, b) => (weight.get(b) ?? 0) - (weight.get(a) ?? 0))
    .slice(0, most);
};

/** Return whether an axis is logarithmic: as the search space says, unless the user chose the other. */
export const isLog = (data: Hyperparameters, name: string, flipped: readonly string[]): boolean => {
  const usual = data.names.find((item) => item.name === name)?.log ?? suitsLog(own(data.columns, name) ?? []);
  return flipped.includes(name) ? !usual : usual;
};

/** Return the axis of the metric. */
export const metricAxis = (data: Hyperparameters, metric: string, isMetricLog: boolean): Dimension => dimensionOf(metric, data.metric, isMetricLog);

/** Return the axis of a hyperparameter. */
export const axisOf = (data: Hyperparameters, name: string, flipped: readonly string[]): Dimension => {
  const described = data.names.find((item) => item.name === name);
  const choices = described?.kind === "categorical" ? (described.values ?? []) : null;
  return dimensionOf(name, own(data.columns, name) ?? [], isLog(data, name, flipped), choices);
};

/** Return the axes in the order of the page. Names that the data lacks are left out. */
export const axesOf = (data: Hyperparameters, names: readonly string[], flipped: readonly string[]): Dimension[] =>
  names.filter((name) => Object.hasOwn(data.columns, name)).map((name) => axisOf(data, name, flipped));

/** Return the values of a trial in words: lr 3e-4, depth 4. */
export const valuesOf = (data: Hyperparameters, index: number, names: readonly string[]): { name: string; text: string }[] =>
  names
    .filter((name) => Object.hasOwn(data.columns, name))
    .map((name) => {
      const value = own(data.columns, name)?.[index];
      return { name, text: typeof value === "number" ? number(value) : textOf(value) };
    });

/** Return the best metric up to each trial, in the order of the numbers of the trials. */
export const bestSoFar = (numbers: readonly number[], metric: readonly (number | null)[], smallerIsBetter: boolean): { number: number; best: number }[] => {
  const order = numbers.map((_, index) => index).sort((a, b) => (numbers[a] ?? 0) - (numbers[b] ?? 0));
  const result: { number: number; best: number }[] = [];
  let best: number | null = null;
  for (const index of order) {
    const value = metric[index] ?? null;
    if (value !== null && Number.isFinite(value) && (best === null || (smallerIsBetter ? value < best : value > best))) best = value;
    if (best !== null) result.push({ number: numbers[index] ?? 0, best });
  }
  return result;
};

/** Return the line of the best metric in places of two axes. */
export const bestLine = (steps: readonly { number: number; best: number }[], toX: (value: number) => number, toY: (value: number) => number): Points => ({
  xs: steps.map(({ number: at }) => toX(at)),
  ys: steps.map(({ best }) => toY(best)),
});

/** Return the indices of selected trials, best first, those without a metric last. */
export const bestOf = (metric: readonly (number | null)[], marks: Uint8Array, smallerIsBetter: boolean, most: number): number[] => {
  const sign = smallerIsBetter ? 1 : -1;
  const key = (index: number) => {
    const value = metric[index];
    return value === null || value === undefined || !Number.isFinite(value) ? Infinity : sign * value;
  };
  return metric
    .map((_, index) => index)
    .filter((index) => marks[index] === 1)
    .sort((a, b) => (key(a) === key(b) ? a - b : key(a) - key(b)))
    .slice(0, most);
};
