import { Badge, Box, HStack, Stack, Text } from "@chakra-ui/react";

import { isOpen } from "../../actions/experiments";
import { type ExperimentFailures, type FailureGroup } from "../../api/failures";
import { type Experiment } from "../../api/experiment";
import { paths } from "../../app/paths";
import { ErrorNotice } from "../../components/ErrorNotice";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { Notice } from "../../components/Notice";
import { RaisedErrors } from "../../components/RaisedErrors";
import { count, plural } from "../../format/numbers";
import { SLOW_MS, useData } from "../../hooks/useData";
import { ENDED } from "../trial/words";

/** Trials of a cause that are named. */
const MOST_NAMED = 16;

type Trials = Experiment["trials"];

/** Return how many trials failed. */
export const failedOf = (trials: Trials): number => trials.errored ?? 0;

/** Return whether more than half of the trials that have ended failed. */
export const haveMostFailed = (trials: Trials): boolean => {
  const ended = Object.entries(trials).reduce((sum, [state, number]) => sum + (ENDED.has(state) ? number : 0), 0);
  return failedOf(trials) * 2 > ended;
};

const useFailures = (experiment: Experiment, isWanted: boolean) => {
  const path = !isWanted ? null : `experiments/${experiment.experiment_id}/failures`;
  return useData<ExperimentFailures>(path, { everyMs: isOpen(experiment) ? SLOW_MS : null });
};

const Trials = ({ group }: { group: FailureGroup }) => {
  const rest = group.count - Math.min(group.trials.length, MOST_NAMED);
  return (
    <Text fontSize="sm">
      {group.count === 1 ? "Trial " : "Trials "}
      {group.trials.slice(0, MOST_NAMED).map((id, index) => (
        <span key={id}>
          {index === 0 ? "" : ", "}
          <PageLink to={paths.trial(id)}>{id}</PageLink>
        </span>
      ))}
      {rest > 0 ? ` and ${count(rest)} more` : ""}
    </Text>
  );
};

const Group = ({ group }: { group: FailureGroup }) => (
  <Box as="li" borderBottomWidth="1px" listStyleType="none" py={3}>
    <HStack align="flex-start" gap={3}>
      <Badge colorPalette="red" flexShrink={0} mt="2px" title={plural(group.count, "trial")}>
        {count(group.count)} ×
      </Badge>
      <Stack gap={2} minW={0}>
        <Text fontWeight="medium" overflowWrap="anywhere">
          {group.cause}
        </Text>
        <RaisedErrors raised={group.raised} />
        {group.advice === "" ? null : <Text fontSize="sm">{group.advice}</Text>}
        <Trials group={group} />
      </Stack>
    </HStack>
  </Box>
);

/** Failed trials of an experiment by cause, the most frequent one first. */
export const FailuresTab = ({ experiment }: { experiment: Experiment }) => {
  const { data, error, loading, refresh } = useFailures(experiment, failedOf(experiment.trials) > 0);
  if (loading) return <Loading lines={4} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="The failures" />;
  return (
    <>
      {data.is_most ? null : <Text fontSize="sm">{data.text}</Text>}
      {data.compared < data.failed ? (
        <Text color="fg.muted" fontSize="xs">
          The latest {count(data.compared)} of them were compared.
        </Text>
      ) : null}
      <Box as="ol" m={0} p={0}>
        {data.groups.map((group) => (
          <Group group={group} key={group.trials[0]} />
        ))}
      </Box>
    </>
  );
};

/** The cause of most failures of an experiment of which most trials failed. */
export const FailuresNotice = ({ experiment }: { experiment: Experiment }) => {
  const { data } = useFailures(experiment, haveMostFailed(experiment.trials));
  const [first] = data?.groups ?? [];
  if (data === undefined || first === undefined || !data.is_most) return null;
  return <Notice hint={`${first.cause}${first.advice === "" ? "" : `. ${first.advice}`}`} status="error" title={data.text} />;
};
