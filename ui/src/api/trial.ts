/** Answers behind the page of one trial, as `api/models/trials.py` and `checkpoints.py` define them. */
import { type Numeric } from "../format/numbers";
import { type Group, type MetricName, type TrialRow } from "./charts";

export interface Download {
  possible: boolean;
  /** Why not, with the command that gets it. */
  reason: string;
  files: number | null;
}

export interface Checkpoint {
  checkpoint_id: number;
  trial_id: number;
  attempt: number;
  step: number;
  host: string;
  location: string;
  size_bytes: number | null;
  sha256: string | null;
  metrics: Record<string, Numeric>;
  at: string;
  removed_at: string | null;
  refused: string | null;
  is_best: boolean;
  download: Download;
}

export interface Output {
  path: string;
  size_bytes: number;
  at: string;
  download: Download;
}

export interface Attempt {
  attempt_id: number;
  number: number;
  state: string;
  reason: string;
  created_at: string;
  granted_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  placement: Record<string, number[]>;
  slots: number;
  failure: Record<string, unknown> | null;
}

export interface Trial extends TrialRow {
  experiment_id: number;
  experiment: string;
  config_id: number;
  seed: number;
  max_restarts: number;
  state_words: string;
  expected: string | null;
  expected_at: string | null;
  queue_class: string | null;
  priority: number;
  slots: number;
  pool: string;
  placement: Record<string, number[]>;
  failure: Record<string, unknown> | null;
  result: Record<string, unknown> | null;
  gaps: { attempt: number; host: string; stream: string; reason: string; text: string; at: string | null }[];
  limits: string | null;
  attempts_list: Attempt[];
  metrics: MetricName[];
  best_checkpoint: Checkpoint | null;
  search_id: number | null;
  is_best: boolean;
  may_edit: boolean;
}

export interface MetricSeries {
  group: Group;
  name: string;
  batches: number[];
  epochs: (number | null)[];
  at_s: number[];
  y: (number | null)[];
  attempt: number[];
}

export interface TelemetrySeries {
  attempt: number;
  host: string;
  device: string | null;
  rank: number | null;
  metric: string;
  unit: string;
  at_s: number[];
  mean: (number | null)[];
  minimum: (number | null)[];
  maximum: (number | null)[];
}

export interface Timings {
  at_s: number[];
  names: string[];
  share: Record<string, (number | null)[]>;
  totals: { name: string; count: number; total_s: number; mean_s: number; max_s: number }[];
}

export interface StepTimes {
  attempt: number | null;
  at_s: number[];
  ranks: { rank: number; host: string; slot: number | null }[];
  mean_s: (number | null)[][];
  median_s: number | null;
  slow_ranks: { rank: number; host: string; ratio: number }[];
}

export interface TimelineEntry {
  at: string;
  until: string | null;
  kind: string;
  attempt: number | null;
  host: string | null;
  text: string;
  detail: Record<string, boolean | number | string | null> | string | null;
}

export interface RankRow {
  rank: number;
  host: string;
  local_rank: number;
  slot: number | null;
  pid: number | null;
  exit_code: number | null;
  exited_at: string | null;
  error: string | null;
  sent_signal: boolean;
  log_tail: string;
}

export interface ProfileRow {
  name: string;
  unit: string;
  count: number;
  mean: number | null;
  minimum: number | null;
  maximum: number | null;
  share: number | null;
  host: string | null;
}

export interface Profile {
  timings: ProfileRow[];
  system: ProfileRow[];
}
