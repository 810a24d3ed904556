/** Answers of the API for tests of pages. */

export const task = { dag_id: "train", run_id: "run 1", task_id: "trial", map_index: 0 };

/** A trial in a table. */
export const trialRow = (trial_id: number, values: object = {}) => ({
  trial_id, number: trial_id - 1, name: `${trial_id - 1} | lr=0.01`, display_name: null, state: "running", never_fits: false, hparams: { lr: 0.01, opt: "adam" }, best_metric: 0.25, best_step: 40,
  units: 4, epochs: null, progress: null, bracket: 0, rung: 0, attempts: 1, restarts: 0, created_at: "2026-01-31T12:00:00Z", ended_at: null, duration_s: 60, reason: null, position: null, task,
  is_current: true, description: "", tags: [], ...values,
});

/** The page of a trial. */
export const trial = (trial_id: number, values: object = {}) => ({
  ...trialRow(trial_id), experiment_id: 5, experiment: "resnet", config_id: 1, seed: 1, max_restarts: 3, state_text: "running", expected: null, expected_at: null, queue_class: "fresh",
  priority: 42, slots: 2, pool: "gpus", placement: { "gpu-1": [0, 1] }, failure: null, result: null, gaps: [], limits: [], stragglers: [], metrics: [{ group: "validation", name: "loss" }], best_checkpoint: null,
  search_id: 1, is_best: false, is_inference: false, shards: null, may_edit: true, jobs: [], job_use: null,
  has_epochs: true, attempts_list: [{ attempt_id: 1, number: 1, state: "running", reason: "", created_at: "2026-01-31T12:00:00Z", granted_at: "2026-01-31T12:00:01Z", started_at: "2026-01-31T12:00:05Z", ended_at: null, placement: { "gpu-1": [0, 1] }, slots: 2, failure: null }],
  ...values,
});

/** The page of an experiment. */
export const experiment = (values: object = {}) => ({
  experiment_id: 5, name: "resnet", display_name: null, dag_id: "train", run_id: "run 1", state: "running", never_fits: false, reason: null, control_request: null, method: "asha", metric: "loss", smaller_is_better: true, best: 0.25,
  best_trial: 1, trials: { running: 1, completed: 2 }, max_trials: 3, progress: 0.5, expected_end: null, created_at: "2026-01-31T12:00:00Z", ended_at: null, description: "", tags: [], owner: "ann", project: "Uncategorized", archived: false, is_deleting: false, may_edit: true,
  config_id: 1, has_epochs: false, config_description: "", config_labels: [], search: { search_id: 1, method: "asha", units: "epochs", seed: 1, divisor: 4, rungs: { 0: [1, 4] } }, best_checkpoint: null, weight: 1, max_slots: null, requested_by: null,
  metrics: [{ group: "validation", name: "loss" }, { group: "validation", name: "accuracy" }],
  hyperparameters: [{ name: "lr", kind: "float", log: true, minimum: 0.001, maximum: 0.1, values: null }, { name: "opt", kind: "categorical", log: false, minimum: null, maximum: null, values: ["adam", "sgd"] }],
  is_inference: false, fork: { possible: true, reason: "" }, ...values,
});

/** One curve of a chart with several trials. */
export const curve = (trial_id: number, values: object = {}) => ({
  trial_id, number: trial_id - 1, trial_name: `${trial_id - 1} | lr=0.01`, state: "running", is_best: trial_id === 1, x: [1, 2, 3], y: [1, 0.5, 0.25], sampled: false, ...values,
});

/** An error as the API answers it. */
export const refusal = (status: number, code: string, message: string, hint = "") => ({ status, body: { detail: { code, message, hint, problems: [] } } });
