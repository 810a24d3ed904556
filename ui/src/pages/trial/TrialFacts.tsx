import { Box, HStack, Text } from "@chakra-ui/react";

import { locationOf, type Trial } from "../../api/trial";
import { paths } from "../../app/paths";
import { CopyButton } from "../../components/CopyButton";
import { Facts } from "../../components/Facts";
import { Fold } from "../../components/Fold";
import { PageLink, TaskLinks } from "../../components/Links";
import { Notice } from "../../components/Notice";
import { ProgressBar } from "../../components/ProgressBar";
import { Elapsed, Since, Time } from "../../components/Time";
import { count, NONE, number, plural } from "../../format/numbers";
import { duration } from "../../format/times";
import { withoutCommand } from "../../lib/nextStep";
import { hparamText } from "../experiment/trialColumns";
import { inferenceFacts } from "./inferenceFacts";
import { currentAttempt, ENDED, failureWords, placementWords } from "./words";

/** Hyperparameters that are shown in the header; the configuration has all of them. */
const MOST_HPARAMS = 24;

/** Gaps that are named. */
const MOST_GAPS = 5;

const Waits = ({ trial }: { trial: Trial }) => (
  <>
    <Text>{trial.reason === null ? trial.state_text : withoutCommand(trial.reason)}</Text>
    <Text color="fg.muted" fontSize="xs">
      {trial.position === null || trial.never_fits ? "" : `Place ${trial.position} in pool ${trial.pool}. `}
      {trial.expected ?? ""} {trial.expected_at === null ? null : <Since at={trial.expected_at} />}
    </Text>
  </>
);

const Trains = ({ trial }: { trial: Trial }) => {
  const attempt = currentAttempt(trial);
  const since = attempt?.started_at ?? attempt?.granted_at;
  return (
    <>
      <Text>{placementWords(trial.placement) ?? trial.state_text}</Text>
      {attempt?.state === "starting" && trial.reason !== null ? <Text>{trial.reason}</Text> : null}
      {since === null || since === undefined ? null : (
        <Text color="fg.muted" fontSize="xs">
          since <Time at={since} /> (<Elapsed from={since} until={attempt?.ended_at} />)
        </Text>
      )}
    </>
  );
};

const Progress = ({ progress }: { progress: NonNullable<Trial["progress"]> }) => {
  const { done, total, unit, share, expected_end } = progress;
  return (
    <>
      {share === null ? null : <ProgressBar share={share} />}
      <Text fontSize="xs">{total === null ? `${count(done)} ${unit}; the configuration names no length` : `${count(done)} of ${count(total)} ${unit}`}</Text>
      {expected_end === null ? null : (
        <Text color="fg.muted" fontSize="xs">
          expected end <Since at={expected_end} />
        </Text>
      )}
    </>
  );
};

const Ended = ({ trial }: { trial: Trial }) => (
  <>
    <Time at={trial.ended_at} />
    {trial.reason === null || failureWords(trial.failure) !== null ? null : (
      <Text color="fg.muted" fontSize="xs">
        {trial.reason}
      </Text>
    )}
  </>
);

const Jobs = ({ trial, use }: { trial: Trial; use: NonNullable<Trial["job_use"]> }) => {
  const job = trial.jobs.at(-1);
  const share = use.cpu_share === null ? "" : `, CPU efficiency ${Math.round(100 * use.cpu_share)} %`;
  return (
    <>
      <Text>
        {plural(use.jobs, "job")}, {number(use.node_hours, 3)} node hours{share}
      </Text>
      <Text color="fg.muted" fontSize="xs">
        {trial.jobs.some(({ started_at }) => started_at !== null) ? `${duration(use.waited_s)} from submission to start. ` : ""}
        {job === undefined || job.number === null ? "" : job.end ?? `Job ${job.number} of ${job.scheduler}: ${job.phase}.`}
      </Text>
    </>
  );
};

/** Reasons of a trial that has ended or needs attention. */
export const TrialNotices = ({ trial }: { trial: Trial }) => {
  const failure = failureWords(trial.failure);
  return (
    <>
      {failure === null || trial.state === "completed" ? null : (
        <Notice hint={failure.more} status={trial.state === "errored" ? "error" : "warning"} title={failure.title} />
      )}
      {trial.limits.length === 0 ? null : <Notice hint={trial.limits.slice(1).join(" ")} status="warning" title={trial.limits[0] ?? ""} />}
      {trial.gaps.length === 0 ? null : (
        <Notice
          hint={trial.gaps.slice(0, MOST_GAPS).map(({ host, stream, reason }) => `${host}, ${stream}: ${reason}`).join(" ")}
          status="warning"
          title={`${plural(trial.gaps.length, "gap")} in the data of the hosts.`}
        />
      )}
      {trial.is_current ? null : <Notice status="info" title="A newer trial of its task has replaced this trial." />}
    </>
  );
};

/** State in words, place, best result and hyperparameters of a trial. */
export const TrialFacts = ({ trial, metric }: { trial: Trial; metric: string | null }) => {
  const hparams = Object.entries(trial.hparams);
  const isWaiting = trial.state === "queued" || trial.state === "paused";
  const { best_checkpoint: best } = trial;
  const hasStarted = trial.duration_s !== null || trial.best_metric !== null;
  return (
    <>
      <Facts
        facts={[
          isWaiting
            ? { label: trial.state === "paused" ? "Paused" : trial.never_fits ? "Cannot run" : "Waits", value: <Waits trial={trial} />, wide: true, first: true }
            : ENDED.has(trial.state)
              ? { label: "Ended", value: <Ended trial={trial} />, first: true }
              : { label: trial.is_inference ? "Computes" : "Trains", value: <Trains trial={trial} />, wide: true, first: true },
          trial.progress !== null && { label: "Progress", value: <Progress progress={trial.progress} />, first: true },
          ...inferenceFacts(trial),
          !trial.is_inference && hasStarted && {
            label: "Best metric",
            first: true,
            value: (
              <>
                {metric === null ? "" : `${metric} `}
                {number(trial.best_metric)}
                {trial.best_step === null ? "" : ` at step ${count(trial.best_step)}`}
                {trial.is_best && trial.search_id !== null ? (
                  <Box as="span" color="green.fg" fontWeight="bold">
                    {" "}
                    best of the experiment
                  </Box>
                ) : null}
              </>
            ),
          },
          !trial.is_inference && hasStarted && {
            label: "Best checkpoint",
            value:
              best === null ? (
                NONE
              ) : (
                <HStack gap={1} my="-6px">
                  <Text overflow="hidden" textOverflow="ellipsis" title={locationOf(best)} whiteSpace="nowrap">
                    step {count(best.step)}
                  </Text>
                  <CopyButton label="Copy the location of the best checkpoint" text={locationOf(best)} />
                </HStack>
              ),
          },
          {
            label: "Trial",
            value: (
              <>
                id {trial.trial_id}, number {trial.number} of{" "}
                <PageLink to={paths.experiment(trial.experiment_id)}>experiment {trial.experiment}</PageLink>
              </>
            ),
          },
          { label: "Task log, DAG run", value: <TaskLinks task={trial.task} /> },
          { label: "Attempts", value: `${plural(trial.attempts, "attempt")}, ${trial.restarts} of ${plural(trial.max_restarts, "restart")} used` },
          { label: "Created", value: <Time at={trial.created_at} /> },
          trial.duration_s !== null && { label: trial.is_inference ? "Computed for" : "Trained for", value: duration(trial.duration_s) },
          trial.job_use !== null && { label: "Jobs", value: <Jobs trial={trial} use={trial.job_use} />, wide: true },
          { label: "Request", value: `${plural(trial.slots, "slot")} in pool ${trial.pool}, priority ${trial.priority}` },
        ]}
      />
      {hparams.length === 0 ? null : (
        <Fold title="Hyperparameters">
        <HStack columnGap={4} fontSize="sm" mb={2} rowGap={1} wrap="wrap">
          {hparams.slice(0, MOST_HPARAMS).map(([name, value]) => (
            <Box key={name} overflowWrap="anywhere">
              <Box as="span" color="fg.muted">
                {name}
              </Box>{" "}
              {hparamText(value)}
            </Box>
          ))}
          {hparams.length > MOST_HPARAMS ? <Box color="fg.muted">and {hparams.length - MOST_HPARAMS} more in the configuration</Box> : null}
        </HStack>
        </Fold>
      )}
    </>
  );
};
