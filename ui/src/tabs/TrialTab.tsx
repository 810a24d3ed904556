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
import { type TabProps } from "./RunTab";

const Found = ({ dagId, runId, taskId, mapIndex }: TabProps) => {
  const known = dagId !== undefined && runId !== undefined && taskId !== undefined;
  const query = { dag_id: dagId, run_id: runId, task_id: taskId, map_index: mapIndex ?? "-1" };
  const { data, error, loading, refresh } = useData<Lookup>(known ? withQuery("lookup", query) : null, { everyMs: 5_000 });
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Trial of this task" />;
  if (data.trials.length === 0) {
    return <EmptyState text="It appears here when the task submits a trial." title="This task has no trial." />;
  }
  return (
    <Stack gap={2}>
      {data.trials.map(({ trial_id, name, state }) => (
        <Box key={trial_id}>
          <StateBadge state={state} />{" "}
          <PageLink to={paths.trial(trial_id)}>{name}</PageLink>
        </Box>
      ))}
    </Stack>
  );
};

/** Tab of a task instance: its trial. */
export const TrialTab = (props: TabProps) => (
  <Shell>
    <Found {...props} />
  </Shell>
);
