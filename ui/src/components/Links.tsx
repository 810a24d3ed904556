import { type ReactNode } from "react";
import { Link } from "react-router-dom";

import { type TaskRef } from "../api/types";
import { paths } from "../app/paths";
import { NONE } from "../format/numbers";

/** A link within the Airflow UI, in its look. */
export const PageLink = ({ to, children, title }: { to: string; children: ReactNode; title?: string | undefined }) => (
  <Link className="dtrain-link" title={title} to={to}>
    {children}
  </Link>
);

/** Links to Airflow's pages of a task: its log and its DAG run. */
export const TaskLinks = ({ task }: { task: TaskRef | null | undefined }) => {
  if (task === null || task === undefined) return <>{NONE}</>;
  const name = `${task.task_id}${task.map_index >= 0 ? ` [${task.map_index}]` : ""}`;
  return (
    <span className="dtrain-row">
      <PageLink title={`Log of ${task.dag_id}.${name}`} to={paths.task(task)}>
        {name}
      </PageLink>
      <PageLink title={`DAG run ${task.run_id}`} to={paths.run(task.dag_id, task.run_id)}>
        {task.dag_id}
      </PageLink>
    </span>
  );
};
