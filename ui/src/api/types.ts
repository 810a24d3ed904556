/** Answers of the API, as the pages use them. */
import { type Numeric } from "../format/numbers";

/** Key of a task instance in Airflow. */
export interface TaskRef {
  dag_id: string;
  run_id: string;
  task_id: string;
  /** -1 for a task that is not mapped. */
  map_index: number;
}

export interface Page<T> {
  rows: T[];
  total: number;
}

export interface Me {
  user: string;
  may_change_hosts: boolean;
  starting: { dag_id: string; exists: boolean; may_trigger: boolean; hint: string | null };
  version: string;
}

export type SlotState = "free" | "held" | "disabled" | "stuck" | "busy_elsewhere";

export interface Holder {
  allocation_id: number;
  trial_id: number | null;
  experiment_id: number | null;
  experiment: string | null;
  trial_name: string | null;
  task: TaskRef | null;
  since: string | null;
  slots: number;
  state: string;
}

export interface Slot {
  index: number;
  state?: SlotState;
  holder?: number | null;
  device?: string | null;
  note?: string | null;
}

export interface Host {
  name: string;
  pool: string;
  state: string;
  state_reason?: string | null;
  state_since?: string | null;
  slot_type: string;
  device_name?: string | null;
  slots: Slot[];
}

export interface PoolCounts {
  name: string;
  slot_type: string;
  hosts: number;
  slots: number;
  free: number;
  held: number;
  unavailable: number;
  waiting: number;
}

export interface Cluster {
  at: string;
  pools: PoolCounts[];
  holders: Record<string, Holder>;
  hosts: Host[];
}

export interface Utilization {
  at_s: number[];
  hosts: { name: string; metric: string; mean: (number | null)[]; devices: { device: string; slot: number | null; mean: (number | null)[] }[] }[];
}

export interface QueueRow {
  allocation_id: number;
  kind: "trial" | "held_gang";
  trial_id: number | null;
  trial_name: string | null;
  attempt: number | null;
  experiment_id: number | null;
  experiment: string | null;
  task: TaskRef | null;
  pool: string;
  queue_class: string;
  position: number | null;
  priority: number;
  slots: number;
  placement: Record<string, number[]> | null;
  state: string;
  reason: string | null;
  since: string | null;
  expected: string | null;
  expected_at: string | null;
  paused: boolean;
  silent_since: string | null;
  may_edit: boolean;
}

export interface Queue extends Page<QueueRow> {
  pools: { name: string; slots: number; free: number; waiting: number; running: number }[];
}

export interface ExperimentRow {
  experiment_id: number;
  name: string;
  dag_id: string | null;
  run_id: string | null;
  state: string;
  wish: string | null;
  method: string | null;
  metric: string | null;
  smaller_is_better: boolean;
  best: Numeric;
  best_trial: number | null;
  trials: Record<string, number>;
  max_trials: number | null;
  progress: number | null;
  expected_end: string | null;
  created_at: string;
  ended_at: string | null;
  description: string | null;
  tags: string[];
}

export interface Experiments extends Page<ExperimentRow> {
  tags: string[];
}

export interface Lookup {
  experiments: { experiment_id: number; name: string; state: string }[];
  trials: { trial_id: number; name: string; state: string; is_current: boolean }[];
}
