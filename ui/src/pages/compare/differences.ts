/** Table of differences between trials. */
import { type ComparedTrial, type Comparison } from "../../api/charts";
import { textOf } from "../../charts/dimensions";
import { number } from "../../format/numbers";
import { own } from "../../lib/own";

export interface DifferenceRow {
  readonly path: string;
  readonly values: readonly string[];
  /** Whether it is a hyperparameter. */
  readonly isHparam: boolean;
}

const shown = (value: unknown): string => (typeof value === "number" ? number(value, 6) : textOf(value));

const isSame = (values: readonly string[]): boolean => values.every((value) => value === values[0]);

/** Return the hyperparameters in which trials differ. */
export const hparamRows = (trials: readonly ComparedTrial[]): DifferenceRow[] => {
  const names = [...new Set(trials.flatMap(({ hparams }) => Object.keys(hparams)))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return names.map((path) => ({ path, values: trials.map(({ hparams }) => shown(own(hparams, path))), isHparam: true })).filter(({ values }) => !isSame(values));
};

const PREFIX = "hyperparameters.";

/** Return all differences: hyperparameters first, and values of the configuration that are no hyperparameter. */
export const differenceRows = ({ trials, differences }: Pick<Comparison, "differences" | "trials">): DifferenceRow[] => {
  const hparams = hparamRows(trials);
  const known = new Set(hparams.map(({ path }) => path));
  const rest = differences
    .filter(({ path }) => !known.has(path.startsWith(PREFIX) ? path.slice(PREFIX.length) : path))
    .map(({ path, values }): DifferenceRow => ({ path, values: values.map(shown), isHparam: false }));
  return [...hparams, ...rest];
};
