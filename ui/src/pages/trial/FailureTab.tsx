import { Box, chakra, Code, Grid, Heading, HStack, List, Stack, Table, Text } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { type Baseline, type NextStep, type TrialFailure } from "../../api/failures";
import { type Trial } from "../../api/trial";
import { paths } from "../../app/paths";
import { CopyButton } from "../../components/CopyButton";
import { ErrorNotice } from "../../components/ErrorNotice";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { LogText } from "../../components/LogText";
import { RaisedErrors } from "../../components/RaisedErrors";
import { Since } from "../../components/Time";
import { plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { shownRow } from "../compare/differences";
import { sameWords, stepPath } from "./failure";
import { plainLog } from "./words";

/** Return the path of the cause of a trial's failure. */
export const failurePath = (id: number | string): string => `trials/${id}/failure`;

const Section = ({ title, children }: { title: ReactNode; children: ReactNode }) => (
  <Box as="section" minW={0}>
    <Heading as="h3" mb={1} size="sm">
      {title}
    </Heading>
    {children}
  </Box>
);

const Error = ({ failure }: { failure: TrialFailure }) => {
  if (failure.is_restricted) return <Text fontSize="sm">Errors and logs are shown to users who may read the task logs of its DAG.</Text>;
  const isFolded = failure.raised.length > 0;
  if (failure.details === "") return <Text fontSize="sm">No traceback was recorded: the sentence above has the whole cause.</Text>;
  return (
    <Stack gap={2}>
      <RaisedErrors raised={failure.raised} />
      {isFolded ? (
        <chakra.details>
          <chakra.summary cursor="pointer" fontSize="sm">
            Whole traceback
          </chakra.summary>
          <LogText label="Whole traceback" text={failure.details} />
        </chakra.details>
      ) : (
        <LogText label="Record of the failure" text={failure.details} />
      )}
    </Stack>
  );
};

const Log = ({ log, trialId }: { log: NonNullable<TrialFailure["log"]>; trialId: number }) => {
  const text = plainLog(log.lines.join("\n"));
  return (
    <Section
      title={
        <HStack gap={1}>
          <span>
            Last lines of rank {log.rank} on {log.host}
          </span>
          <CopyButton label={`Copy the last lines of rank ${log.rank}`} text={text} />
        </HStack>
      }
    >
      <LogText label={`Last lines of the log of rank ${log.rank}`} maxH="18rem" text={text} />
      {log.has_more ? (
        <Text fontSize="xs">
          <PageLink to={`${paths.trial(trialId)}?tab=log&ranks=${log.rank}`}>More of this log, and the logs of the other ranks</PageLink>
        </Text>
      ) : null}
    </Section>
  );
};

const Step = ({ step, to }: { step: NextStep; to: string | null }) => (
  <List.Item _marker={{ color: "fg.muted" }} css={{ "& .dtrain-link": { whiteSpace: "normal" } }} overflowWrap="anywhere">
    {to === null ? step.text : <PageLink to={to}>{step.text}</PageLink>}
    {to !== null || step.command === null || step.command === undefined ? null : (
      <HStack as="span" display="inline-flex" gap={1} maxW="100%" ms={1} verticalAlign="middle">
        <Code overflowWrap="anywhere">{step.command}</Code>
        <CopyButton label="Copy the command" text={step.command} />
      </HStack>
    )}
  </List.Item>
);

const Changes = ({ baseline }: { baseline: Baseline }) => {
  const rows = baseline.changes.map(shownRow);
  return (
    <>
      {rows.length === 0 ? (
        <Text fontSize="sm">Nothing that was recorded.</Text>
      ) : (
        <Box maxH="22rem" overflow="auto" role="region" tabIndex={0} aria-label="Changes since the last good run">
          <Table.Root size="sm">
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader>Changed</Table.ColumnHeader>
                <Table.ColumnHeader>Trial {baseline.trial_id}</Table.ColumnHeader>
                <Table.ColumnHeader>This trial</Table.ColumnHeader>
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {rows.map(({ name, values }, index) => (
                <Table.Row key={index}>
                  <Table.Cell overflowWrap="anywhere">{name}</Table.Cell>
                  {values.map((value, of) => (
                    <Table.Cell key={of} overflowWrap="anywhere">
                      {value}
                    </Table.Cell>
                  ))}
                </Table.Row>
              ))}
            </Table.Body>
          </Table.Root>
        </Box>
      )}
      <Text color="fg.muted" fontSize="xs" mt={1} overflowWrap="anywhere">
        {baseline.more === 0 ? "" : `And ${plural(baseline.more, "further change")}. `}
        {baseline.same.length === 0 ? "" : `The same: ${baseline.same.join(", ")}. `}
        {baseline.unknown.length === 0 ? "" : `Not comparable: ${baseline.unknown.join(", ")}.`}
      </Text>
    </>
  );
};

const SinceGoodRun = ({ baseline }: { baseline: Baseline }) => (
  <>
    Changed since <PageLink to={paths.trial(baseline.trial_id)}>trial {baseline.trial_id}</PageLink>, the last good run
    {baseline.is_of_experiment ? "" : ` of an earlier experiment`} (<Since at={baseline.ended_at} />)
  </>
);

/** Why a trial failed: what to try, its error, the last lines of the rank, and what has changed since the last good run. */
export const FailureTab = ({ trial }: { trial: Trial }) => {
  const { data, error, loading, refresh } = useData<TrialFailure>(failurePath(trial.trial_id), { everyMs: null });
  if (loading) return <Loading lines={4} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="The cause" />;
  const same = sameWords(data.same_attempts);
  return (
    <Grid columnGap={6} gridTemplateColumns={{ base: "minmax(0, 1fr)", lg: "minmax(0, 3fr) minmax(0, 2fr)" }} gridTemplateRows={{ lg: "auto 1fr" }} mb={4} rowGap={4}>
      <Box gridColumn={{ lg: 2 }} minW={0}>
        <Section title="What to try">
          <List.Root as="ol" fontSize="sm" gap={1} ps={5}>
            {data.steps.map((step, index) => (
              <Step key={index} step={step} to={stepPath(step, trial, data.baseline)} />
            ))}
          </List.Root>
        </Section>
      </Box>
      <Stack gap={4} gridColumn={{ lg: 1 }} gridRow={{ lg: "1 / 3" }} minW={0}>
        <Section title={data.phase === "start" ? "It could not start" : "Error"}>
          <Error failure={data} />
          {same === null ? null : (
            <Text fontSize="sm" mt={1}>
              {same}
            </Text>
          )}
        </Section>
        {data.log === null || data.log === undefined ? null : <Log log={data.log} trialId={trial.trial_id} />}
      </Stack>
      <Box gridColumn={{ lg: 2 }} minW={0}>
        {data.baseline === null ? (
          <Section title="Changed since the last good run">
            <Text fontSize="sm">No earlier trial of this experiment has a result, so there is nothing to compare it with.</Text>
          </Section>
        ) : (
          <Section title={<SinceGoodRun baseline={data.baseline} />}>
            <Changes baseline={data.baseline} />
          </Section>
        )}
      </Box>
    </Grid>
  );
};
