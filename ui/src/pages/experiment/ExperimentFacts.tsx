import { HStack, Text } from "@chakra-ui/react";

import { type TrialRow } from "../../api/charts";
import { locationOf } from "../../api/trial";
import { type Experiment } from "../../api/experiment";
import { type Page } from "../../api/types";
import { paths } from "../../app/paths";
import { CopyButton } from "../../components/CopyButton";
import { Facts } from "../../components/Facts";
import { PageLink } from "../../components/Links";
import { ProgressBar } from "../../components/ProgressBar";
import { Tags } from "../../components/Tags";
import { Elapsed, Since, Time } from "../../components/Time";
import { NONE, number, plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { withoutCommand } from "../../lib/nextStep";
import { trialsInWords } from "../experiments/columns";

/** Return the id of the task group of a task, or null for a task outside of any. */
export const groupOf = (taskId: string | undefined): string | null => {
  const at = taskId?.lastIndexOf(".") ?? -1;
  return taskId === undefined || at <= 0 ? null : taskId.slice(0, at);
};

const Best = ({ experiment }: { experiment: Experiment }) => {
  const { best, best_trial, best_checkpoint, metric } = experiment;
  if (best_trial === null) return <>{NONE}</>;
  return (
    <>
      <PageLink title="Of trials with the same metric, the one with the lowest number is the best." to={paths.trial(best_trial)}>
        {metric ?? "metric"} {number(best)}
      </PageLink>
      {best_checkpoint === null ? null : (
        <HStack gap={1} my="-6px">
          <Text color="fg.muted" fontSize="xs" overflow="hidden" textOverflow="ellipsis" title={locationOf(best_checkpoint)} whiteSpace="nowrap">
            checkpoint of step {best_checkpoint.step}
          </Text>
          <CopyButton label="Copy the location of the best checkpoint" text={locationOf(best_checkpoint)} />
        </HStack>
      )}
    </>
  );
};

const DagLinks = ({ experiment }: { experiment: Experiment }) => {
  const { dag_id, run_id, experiment_id } = experiment;
  const { data } = useData<Page<TrialRow>>(`trials?experiment_id=${experiment_id}&limit=1`, { everyMs: null });
  const group = groupOf(data?.rows[0]?.task.task_id);
  return (
    <>
      <PageLink title={run_id} to={paths.run(dag_id, run_id)}>
        {dag_id}
      </PageLink>
      {group === null ? null : (
        <Text fontSize="xs">
          <PageLink to={paths.group(dag_id, run_id, group)}>task group {group}</PageLink>
        </Text>
      )}
    </>
  );
};

const filtered = (name: string, value: string) => `${paths.experiments}?${name}=${encodeURIComponent(value)}`;

const Place = ({ experiment: { owner, project, archived, is_deleting } }: { experiment: Experiment }) => (
  <>
    {owner === "" ? null : (
      <>
        <PageLink to={filtered("owner", owner)}>{owner}</PageLink>
        {", "}
      </>
    )}
    <PageLink to={`${filtered("project", project)}&owner=*`}>{project}</PageLink>
    {archived ? ", archived" : ""}
    {is_deleting ? ", is being deleted" : ""}
  </>
);

const searcher = ({ method, metric, smaller_is_better, search }: Experiment): string => {
  if (method === null) return NONE;
  const goal = metric === null ? "" : `: ${metric}, ${smaller_is_better ? "smaller" : "larger"} is better`;
  return `${method}${goal}${search === null ? "" : `, seed ${search.seed}`}`;
};

/** Progress, best trial, expected end and plan of an experiment. */
export const ExperimentFacts = ({ experiment }: { experiment: Experiment }) => {
  const { progress, trials, max_trials, expected_end, ended_at, created_at, control_request, requested_by, weight, max_slots, reason } = experiment;
  return (
    <Facts
      facts={[
        reason !== null && { label: "Cannot run", value: withoutCommand(reason), wide: true, first: true },
        {
          label: "Progress",
          first: true,
          value: (
            <>
              <ProgressBar share={progress} />
              <Text fontSize="xs">
                {trialsInWords(trials)}, {plural(max_trials, "trial")} planned
              </Text>
            </>
          ),
        },
        !experiment.is_inference && { label: "Best trial", first: true, value: <Best experiment={experiment} /> },
        ended_at === null
          ? { label: "Expected end", value: expected_end === null ? "unknown: too few trials have ended, and too few reports" : <Since at={expected_end} /> }
          : { label: "Ended", value: <Time at={ended_at} /> },
        {
          label: "Created",
          value: (
            <>
              <Time at={created_at} />
              <Text color="fg.muted" fontSize="xs">
                {ended_at === null ? "running for" : "took"} <Elapsed from={created_at} until={ended_at} />
              </Text>
            </>
          ),
        },
        experiment.config_description !== "" && { label: "Description in the configuration", value: experiment.config_description, wide: true },
        experiment.config_labels.length > 0 && { label: "Labels in the configuration", value: <Tags tags={experiment.config_labels} /> },
        !experiment.is_inference && { label: "Searcher", value: searcher(experiment) },
        { label: "Owner and project", value: <Place experiment={experiment} /> },
        { label: "DAG run", value: <DagLinks experiment={experiment} /> },
        (weight !== 1 || max_slots !== null) && { label: "Share of the queue", value: `weight ${number(weight)}${max_slots === null ? "" : `, at most ${plural(max_slots, "slot")}`}` },
        control_request !== null && { label: "Requested", value: `${control_request}${requested_by === null ? "" : ` by ${requested_by}`}` },
      ]}
    />
  );
};
