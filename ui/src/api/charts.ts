/** Answers behind charts, as `api/models/charts.py` and `api/models/trials.py` define them. */
import { type Numeric } from "../format/numbers";
import { type TaskRef } from "./types";

export type Group = "training" | "validation";

export interface MetricName {
  group: Group;
  name: string;
}

export interface CurveSeries {
  trial_id: number;
  /** From 0 in its experiment. */
  number?: number;
  trial_name: string;
  state: string;
  is_best: boolean;
  x: number[];
  y: (number | null)[];
}

export interface Curves {
  metric: string;
  group: Group;
  x: "batches" | "epochs" | "time";
  /** Trials that could be shown. */
  total_trials: number;
  series: CurveSeries[];
}

export interface Hyperparameters {
  names: { name: string; kind: "categorical" | "const" | "float" | "int"; log: boolean; values: unknown[] | null }[];
  trial_id: number[];
  number: number[];
  state: string[];
  metric: (number | null)[];
  columns: Record<string, unknown[]>;
  /** Largest first. */
  importance: { name: string; value: number }[];
  importance_note: string;
}

export interface RungEntry {
  trial_id: number;
  number: number;
  metric: Numeric;
  decision: string | null;
  rank: number | null;
  of: number;
  distance: Numeric;
  is_error: boolean;
  has_left: boolean;
  at: string;
}

export interface Rung {
  rung: number;
  units: number;
  reported: number;
  continued: number;
  stopped: number;
  cut_off: Numeric;
  entries: RungEntry[];
}

export interface Rungs {
  metric: string | null;
  smaller_is_better: boolean;
  divisor: number;
  units: string;
  brackets: { bracket: number; rungs: Rung[] }[];
}

export interface TrialRow {
  trial_id: number;
  number: number;
  name: string;
  display_name: string | null;
  state: string;
  hparams: Record<string, unknown>;
  best_metric: Numeric;
  best_step: number | null;
  units: number | null;
  bracket: number;
  rung: number | null;
  attempts: number;
  restarts: number;
  created_at: string;
  ended_at: string | null;
  duration_s: number | null;
  reason: string | null;
  position: number | null;
  task: TaskRef;
  is_current: boolean;
  description: string;
  tags: string[];
}

export interface ComparedTrial extends TrialRow {
  experiment_id: number;
  experiment: string;
}

export interface Comparison {
  trials: ComparedTrial[];
  metrics: MetricName[];
  /** One value per trial; null where the configuration has none. */
  differences: { path: string; values: unknown[] }[];
  same: number;
}
