import { HStack, NativeSelect, Text } from "@chakra-ui/react";

import { withQuery } from "../api/client";
import { type Lookup } from "../api/types";
import { paths } from "../app/paths";
import { EmptyState } from "../components/EmptyState";
import { ErrorNotice } from "../components/ErrorNotice";
import { PageLink } from "../components/Links";
import { Loading } from "../components/Loading";
import { useData } from "../hooks/useData";
import { useUrlState } from "../hooks/useUrlState";
import { TrialView } from "../pages/trial/TrialPage";
import { TabFrame, type TabProps } from "./TabFrame";

const USUAL = { trial: "" };

/** Period of the search for a new trial of the task, in milliseconds. */
const EVERY_MS = 5_000;

const Found = ({ dagId, runId, taskId, mapIndex }: TabProps) => {
  const [view, setView] = useUrlState(USUAL);
  const known = dagId !== undefined && runId !== undefined && taskId !== undefined;
  const query = { dag_id: dagId, run_id: runId, task_id: taskId, map_index: mapIndex ?? "-1" };
  const { data, error, loading, refresh } = useData<Lookup>(known ? withQuery("lookup", query) : null, { everyMs: EVERY_MS });
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Trial of this task" />;
  const shown =
    data.trials.find(({ trial_id }) => String(trial_id) === view.trial) ?? data.trials.find(({ is_current }) => is_current) ?? data.trials[0];
  if (shown === undefined) {
    return <EmptyState text="It appears here when the task submits a trial." title="This task has no trial." />;
  }
  return (
    <>
      <HStack gap={3} mb={2}>
        {data.trials.length > 1 ? (
          <NativeSelect.Root size="sm" width="320px">
            <NativeSelect.Field aria-label="Trial of the task" onChange={(event) => setView({ trial: event.target.value })} value={shown.trial_id}>
              {data.trials.map(({ trial_id, name, state, is_current }) => (
                <option key={trial_id} value={trial_id}>
                  Trial {trial_id}: {name} ({state}
                  {is_current ? "" : ", replaced"})
                </option>
              ))}
            </NativeSelect.Field>
            <NativeSelect.Indicator />
          </NativeSelect.Root>
        ) : null}
        <Text fontSize="sm">
          <PageLink to={paths.trial(shown.trial_id)}>Page of the trial</PageLink>
        </Text>
      </HStack>
      <TrialView id={String(shown.trial_id)} key={shown.trial_id} />
    </>
  );
};

/** Tab of a task instance: its trial. */
export const TrialTab = (props: TabProps) => (
  <TabFrame>
    <Found {...props} />
  </TabFrame>
);
