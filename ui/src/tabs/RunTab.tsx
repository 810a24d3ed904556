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
import { ExperimentView } from "../pages/experiment/ExperimentPage";
import { TabFrame, type TabProps } from "./TabFrame";

const USUAL = { experiment: "" };

/** Period of the search for new experiments of the run, in milliseconds. */
const EVERY_MS = 5_000;

const Found = ({ dagId, runId }: TabProps) => {
  const [view, setView] = useUrlState(USUAL);
  const path = dagId === undefined || runId === undefined ? null : withQuery("lookup", { dag_id: dagId, run_id: runId });
  const { data, error, loading, refresh } = useData<Lookup>(path, { everyMs: EVERY_MS });
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Experiments of this DAG run" />;
  const shown = data.experiments.find(({ experiment_id }) => String(experiment_id) === view.experiment) ?? data.experiments[0];
  if (shown === undefined) {
    return <EmptyState text="It appears here when a task of the run submits trials." title="This DAG run has no experiment." />;
  }
  return (
    <>
      <HStack gap={3} mb={2}>
        {data.experiments.length > 1 ? (
          <NativeSelect.Root size="sm" width="320px">
            <NativeSelect.Field aria-label="Experiment of the DAG run" onChange={(event) => setView({ experiment: event.target.value })} value={shown.experiment_id}>
              {data.experiments.map(({ experiment_id, name, state }) => (
                <option key={experiment_id} value={experiment_id}>
                  {name} ({state})
                </option>
              ))}
            </NativeSelect.Field>
            <NativeSelect.Indicator />
          </NativeSelect.Root>
        ) : null}
        <Text fontSize="sm">
          <PageLink to={paths.experiment(shown.experiment_id)}>Page of the experiment</PageLink>
        </Text>
      </HStack>
      <ExperimentView id={String(shown.experiment_id)} key={shown.experiment_id} />
    </>
  );
};

/** Tab of a DAG run: its experiments. */
export const RunTab = (props: TabProps) => (
  <TabFrame>
    <Found {...props} />
  </TabFrame>
);
