import { Box, Stack } from "@chakra-ui/react";

import { withQuery } from "../api/client";
import { type Lookup } from "../api/types";
import { paths } from "../app/paths";
import { Shell } from "../app/Shell";
import { EmptyState } from "../components/EmptyState";
import { ErrorNotice } from "../components/ErrorNotice";
import { PageLink } from "../components/Links";
import { Loading } from "../components/Loading";
import { StateBadge } from "../components/StateBadge";
import { useData } from "../hooks/useData";

/** Values of the address that the Airflow UI passes to a tab. */
export interface TabProps {
  dagId?: string;
  runId?: string;
  taskId?: string;
  /** Absent for a task that is not mapped. */
  mapIndex?: string;
}

const Found = ({ dagId, runId }: TabProps) => {
  const path = dagId === undefined || runId === undefined ? null : withQuery("lookup", { dag_id: dagId, run_id: runId });
  const { data, error, loading, refresh } = useData<Lookup>(path, { everyMs: 5_000 });
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Experiments of this DAG run" />;
  if (data.experiments.length === 0) {
    return <EmptyState text="It appears here when a task of the run submits trials." title="This DAG run has no experiment." />;
  }
  return (
    <Stack gap={2}>
      {data.experiments.map(({ experiment_id, name, state }) => (
        <Box key={experiment_id}>
          <StateBadge state={state} />{" "}
          <PageLink to={paths.experiment(experiment_id)}>{name}</PageLink>
        </Box>
      ))}
    </Stack>
  );
};

/** Tab of a DAG run: its experiments. */
export const RunTab = (props: TabProps) => (
  <Shell>
    <Found {...props} />
  </Shell>
);
