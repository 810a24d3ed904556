import { Box, Button, chakra, HStack, Stack, Text } from "@chakra-ui/react";

import { CopyButton } from "../../components/CopyButton";
import { ErrorNotice } from "../../components/ErrorNotice";
import { plural } from "../../format/numbers";
import { useOperation } from "../../hooks/useOperation";
import { visible } from "../../lib/visible";
import { type RankStack, stackGroups } from "./stacks";

/** Groups that are unfolded at once. */
const MOST_OPEN = 4;

/** Hosts of a group that are named. */
const MOST_HOSTS = 4;

interface Result {
  ranks?: RankStack[];
  problems?: string[];
}

const Groups = ({ result }: { result: Result }) => {
  const groups = stackGroups(result.ranks ?? []);
  return (
    <Stack gap={2}>
      {(result.problems ?? []).map((problem) => (
        <Text color="fg.warning" key={problem}>
          {visible(problem)}
        </Text>
      ))}
      {groups.map(({ ranks, count, hosts, text, problem }, index) => (
        <chakra.details key={ranks} open={index < MOST_OPEN}>
          <chakra.summary cursor="pointer">
            {count === 1 ? "Rank" : "Ranks"} {ranks} on {hosts.slice(0, MOST_HOSTS).join(", ")}
            {hosts.length > MOST_HOSTS ? ` and ${plural(hosts.length - MOST_HOSTS, "more host")}` : ""}
            {problem === "" ? "" : `: ${visible(problem)}`}
          </chakra.summary>
          {text === "" ? null : (
            <Box aria-label={`Stacks of ranks ${ranks}`} borderColor="border" borderRadius="md" borderWidth={1} maxH="50vh" overflow="auto" position="relative" role="region" tabIndex={0}>
              <chakra.pre fontFamily="mono" fontSize="13px" m={0} p={2}>
                {visible(text)}
              </chakra.pre>
              <Box insetEnd={1} position="absolute" top={1}>
                <CopyButton label={`Copy the stacks of ranks ${ranks}`} text={text} />
              </Box>
            </Box>
          )}
        </chakra.details>
      ))}
    </Stack>
  );
};

/** Python stacks of all running ranks, on request. Ranks at the same place are shown together. */
export const StacksPanel = ({ trialId }: { trialId: number }) => {
  const [{ operation, isBusy, error }, start] = useOperation("stacks");
  return (
    <Stack gap={2}>
      <HStack gap={3} wrap="wrap">
        <Button disabled={isBusy} onClick={() => start({ trial_id: trialId })} size="sm" variant="outline">
          {operation?.state === "done" ? "Read the stacks again" : "Python stacks of all ranks"}
        </Button>
        <Text aria-live="polite" color="fg.muted" fontSize="sm">
          {!isBusy ? "" : operation?.through === "dag" ? `Requested from the hosts by a run of the DAG ${operation.dag_id ?? ""}.` : "Requested from the hosts."}
        </Text>
      </HStack>
      {error === null ? null : <ErrorNotice error={error} onRetry={() => start({ trial_id: trialId })} what="Stacks" />}
      {operation?.state === "done" ? <Groups result={(operation.result ?? {}) as Result} /> : null}
    </Stack>
  );
};
