/** Answers behind the page of one experiment and the editor, as `api/models/experiments.py` and `configs.py` define them. */
import { type MetricName } from "./charts";
import { type Checkpoint } from "./trial";
import { type ExperimentRow } from "./types";

export interface Search {
  search_id: number;
  generation: number;
  divisor: number;
  seed: number;
  units: string;
  rungs: Record<string, number[]>;
  /** 0 for no cap. */
  max_concurrent_trials: number;
  sampler: string;
}

export interface Hyperparameter {
  name: string;
  kind: "categorical" | "const" | "float" | "int";
  log: boolean;
  minimum: number | null;
  maximum: number | null;
  values: unknown[] | null;
}

export interface Experiment extends ExperimentRow {
  config_id: number | null;
  search: Search | null;
  best_checkpoint: Checkpoint | null;
  weight: number;
  max_slots: number | null;
  /** User of `wish`. */
  wished_by: string | null;
  metrics: MetricName[];
  hyperparameters: Hyperparameter[];
  fork: { possible: boolean; reason: string };
}

export interface ShownConfig {
  config_id: number;
  yaml: string;
  template: string | null;
  template_version: number | null;
  lines: { text: string; path: string; origin: string }[];
}

export interface PlacedProblem {
  path: string;
  /** From 1. */
  line: number;
  column: number;
  message: string;
  severity: "error" | "warning";
}

export interface Validation {
  problems: PlacedProblem[];
  summary: {
    name: string;
    method: string;
    trials: number;
    slots_per_trial: number;
    pool: string;
    fits: boolean;
    fits_reason: string;
  } | null;
}

export interface Templates {
  rows: { name: string; version: number; set_by: string; set_at: string }[];
}

export interface ForkSource {
  yaml: string;
  payload_digest: string | null;
  template: string | null;
}

export interface Started {
  dag_id: string;
  run_id: string;
  message: string;
}
