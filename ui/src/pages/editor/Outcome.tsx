import { Box, Button, chakra, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";

import { type PlacedProblem, type Validation } from "../../api/experiment";
import { ConfigLines } from "../../components/ConfigLines";
import { Facts } from "../../components/Facts";
import { Icon } from "../../components/icons";
import { count, plural } from "../../format/numbers";

interface Props {
  outcome: Validation | null;
  pending: boolean;
  onGo: (problem: PlacedProblem) => void;
}

const Problem = ({ problem, onGo }: { problem: PlacedProblem; onGo: () => void }) => (
  <chakra.button
    _hover={{ bg: "bg.muted" }}
    borderLeftColor={problem.severity === "error" ? "border.error" : "border.warning"}
    borderLeftWidth={3}
    cursor="pointer"
    display="block"
    fontSize="sm"
    onClick={onGo}
    px={2}
    py={1}
    textAlign="start"
    type="button"
    width="100%"
  >
    <Box color={problem.severity === "error" ? "red.fg" : "orange.fg"} fontSize="xs">
      {problem.severity === "error" ? "Error" : "Warning"} in line {problem.line}
      {problem.path === "" ? "" : `, ${problem.path}`}
    </Box>
    <Box overflowWrap="anywhere">{problem.message}</Box>
  </chakra.button>
);

/** Problems of the text, and the experiment that it describes. */
export const Outcome = ({ outcome, pending, onGo }: Props) => {
  const [whole, setWhole] = useState(false);
  const problems = outcome?.problems ?? [];
  const errors = problems.filter(({ severity }) => severity === "error").length;
  const summary = outcome?.summary ?? null;
  return (
    <Stack gap={3} minW={0}>
      <Text aria-live="polite" fontWeight="bold">
        {outcome === null ? (pending ? "Checking ..." : "") : errors > 0 ? plural(errors, "error") : problems.length > 0 ? plural(problems.length, "warning") : "The configuration is valid."}
        {pending && outcome !== null ? " Checking ..." : ""}
      </Text>
      {problems.length === 0 ? null : (
        <Stack gap={1} maxH="40vh" overflowY="auto">
          {problems.map((problem, index) => (
            <Problem key={`${problem.path} ${problem.line} ${index}`} onGo={() => onGo(problem)} problem={problem} />
          ))}
        </Stack>
      )}
      {summary === null ? null : (
        <Box borderColor="border" borderRadius="md" borderWidth={1} p={3}>
          <Facts
            facts={[
              { label: "Experiment", value: summary.name },
              { label: "Searcher", value: summary.method },
              { label: "Trials", value: count(summary.trials) },
              { label: "Slots of a trial", value: count(summary.slots_per_trial) },
              { label: "Pool", value: summary.pool },
              { label: "Code", value: summary.code, wide: true },
            ]}
          />
          <Text color={summary.fits ? "green.fg" : "orange.fg"} fontSize="sm">
            <Icon name={summary.fits ? "check" : "warning"} /> {summary.fits ? summary.fits_reason || "The hosts of the pool can run a trial." : summary.fits_reason}
          </Text>
        </Box>
      )}
      {outcome === null || outcome.effective.length === 0 ? null : (
        <div>
          <Button aria-expanded={whole} onClick={() => setWhole(!whole)} size="xs" variant="outline">
            {whole ? "Hide the effective configuration" : `Show the effective configuration, ${plural(outcome.effective.length, "line")}`}
          </Button>
          {whole ? <Box mt={2}><ConfigLines lines={outcome.effective} maxH="50vh" /></Box> : null}
        </div>
      )}
    </Stack>
  );
};
