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
  /** Whether the user may start experiments; the hint is "" then. */
  starting: { dag_id: string; exists: boolean; may_trigger: boolean; hint: string };
  version: string;
}

export type SlotState = "free" | "held" | "disabled" | "stuck" | "busy_elsewhere";

/** A gang that holds slots. */
export interface Holder {
  allocation_id: number;
  /** Null for a held gang that no trial uses now. */
  trial_id: number | null;
  experiment_id: number | null;
  experiment: string;
  trial_name: string | null;
  task: TaskRef | null;
  since: string;
  slots: number;
  state: string;
  /** The holder is of a DAG that the user may not read. */
  hidden: boolean;
}

/** A slot; its index is its place in the list. Fields at their defaults are left out. */
export interface Slot {
  /** "free" if left out. */
  state?: SlotState;
  /** Key in `holders`. */
  holder?: number | null;
  disabled?: boolean;
  device?: string | null;
  note?: string;
}

/** A host. Fields at their defaults are left out. */
export interface Host {
  name: string;
  pool: string;
  /** "ready" if left out. */
  state?: string;
  state_reason?: string;
  state_since?: string | null;
  /** "cuda" if left out. */
  slot_type?: string;
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
  experiment: string;
  task: TaskRef;
  pool: string;
  queue_class: string;
  /** Place among the waiting gangs of the pool. */
  position: number | null;
  priority: number;
  slots: number;
  placement: Record<string, number[]>;
  state: string;
  reason: string | null;
  since: string;
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
  /** Name that a user gave. */
  display_name: string | null;
  dag_id: string;
  run_id: string;
  state: string;
  /** Control request in force: "pause", "stop" or "kill". */
  wish: string | null;
  method: string | null;
  metric: string | null;
  smaller_is_better: boolean;
  best: Numeric;
  best_trial: number | null;
  trials: Record<string, number>;
  max_trials: number;
  progress: number;
  expected_end: string | null;
  created_at: string;
  ended_at: string | null;
  description: string;
  tags: string[];
  may_edit: boolean;
}

export interface Experiments extends Page<ExperimentRow> {
  tags: string[];
}

export interface Lookup {
  experiments: { experiment_id: number; name: string; state: string }[];
  trials: { trial_id: number; experiment_id: number; name: string; state: string; task_id: string; map_index: number; is_current: boolean }[];
}
