/** Addresses of pages. The router of the Airflow UI adds the sub-path of `[api] base_url`. */
import { type TaskRef } from "../api/types";

/** Route of the app in the Airflow UI; `plugins/dtrain_plugin.py` registers the same. */
export const ROOT = "/plugin/dtrain";

const part = encodeURIComponent;

export const paths = {
  cluster: `${ROOT}/cluster`,
  /** What a host did in the last 24 hours. */
  hostDay: (name: string) => `${ROOT}/cluster?view=day&host=${part(name)}`,
  queue: `${ROOT}/queue`,
  experiments: `${ROOT}/experiments`,
  experiment: (id: number | string) => `${ROOT}/experiments/${part(String(id))}`,
  trial: (id: number | string) => `${ROOT}/trials/${part(String(id))}`,
  /** Page that compares trials, with the trials in its query string. */
  compare: (ids: readonly (number | string)[]) =>
    `${ROOT}/compare${ids.length > 0 ? `?${ids.map((id) => `trial=${part(String(id))}`).join("&")}` : ""}`,
  /** Editor of a configuration, empty or with the one of an experiment. */
  start: (forkOf?: number | string) => `${ROOT}/experiments/new${forkOf === undefined ? "" : `?fork=${part(String(forkOf))}`}`,
  /** Airflow's page of a task group of a DAG run. */
  group: (dagId: string, runId: string, groupId: string) => `${paths.run(dagId, runId)}/tasks/group/${part(groupId)}`,
  /** Airflow's page of a DAG run. */
  run: (dagId: string, runId: string) => `/dags/${part(dagId)}/runs/${part(runId)}`,
  /** Airflow's page of a task instance, which begins with its log. */
  task: ({ dag_id, run_id, task_id, map_index }: TaskRef) =>
    `${paths.run(dag_id, run_id)}/tasks/${part(task_id)}${map_index >= 0 ? `/mapped/${map_index}` : ""}`,
};
