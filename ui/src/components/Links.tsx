import { HStack, Link } from "@chakra-ui/react";
import { type ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import { type TaskRef } from "../api/types";
import { paths } from "../app/paths";
import { NONE } from "../format/numbers";

/** A link within the Airflow UI, in its look. */
export const PageLink = ({ to, children, title }: { to: string; children: ReactNode; title?: string | undefined }) => (
  <Link asChild color="fg.info" display="inline-block" fontWeight="bold" maxW="100%" truncate verticalAlign="bottom">
    <RouterLink title={title} to={to}>
      {children}
    </RouterLink>
  </Link>
);

/** Links to Airflow's pages of a task: its log and its DAG run. */
export const TaskLinks = ({ task }: { task: TaskRef | null | undefined }) => {
  if (task === null || task === undefined) return <>{NONE}</>;
  const name = `${task.task_id}${task.map_index >= 0 ? ` [${task.map_index}]` : ""}`;
  return (
    <HStack gap={2} maxW="100%" minW={0}>
      <PageLink title={`Log of ${task.dag_id}.${name}`} to={paths.task(task)}>
        {name}
      </PageLink>
      <PageLink title={`DAG run ${task.run_id}`} to={paths.run(task.dag_id, task.run_id)}>
        {task.dag_id}
      </PageLink>
    </HStack>
  );
};
