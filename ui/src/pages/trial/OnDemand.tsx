import { Button, chakra, Heading, HStack, Input, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";

import { type Output, type Outputs, type Trial } from "../../api/trial";
import { ErrorNotice } from "../../components/ErrorNotice";
import { FilterSelect } from "../../components/FilterSelect";
import { Time } from "../../components/Time";
import { bytes } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useOperation } from "../../hooks/useOperation";
import { useUrlState } from "../../hooks/useUrlState";
import { visible } from "../../lib/visible";
import { FlamePanel } from "./FlamePanel";
import { ranges } from "./words";
import { StacksPanel } from "./StacksPanel";
import { ENDED } from "./words";

const USUAL = { trace: "" };

const USUAL_BATCHES = 3;

/** Batches of one trace, as the training library allows them. */
const MOST_BATCHES = 100;

const isTrace = ({ path }: Output): boolean => /^work\/traces\/.*\.pt\.trace\.json(\.gz)?$/.test(path);

const numbersOf = (text: string): number[] | null => {
  const parts = text.split(/[\s,]+/).filter((part) => part !== "");
  return parts.length > 0 && parts.length <= 64 && parts.every((part) => /^\d{1,6}$/.test(part)) ? parts.map(Number) : null;
};

interface Result {
  ranks?: number[];
  problems?: string[];
}

const Recorder = ({ trialId }: { trialId: number }) => {
  const [batches, setBatches] = useState(String(USUAL_BATCHES));
  const [ranks, setRanks] = useState("0");
  const [withStack, setWithStack] = useState(false);
  const [{ operation, isBusy, error }, start] = useOperation("profile");
  const [wanted, numbers] = [Number(batches), numbersOf(ranks)];
  const isValid = Number.isInteger(wanted) && wanted >= 1 && wanted <= MOST_BATCHES && numbers !== null;
  const request = () => start({ trial_id: trialId, batches: wanted, ranks: numbers, with_stack: withStack });
  const result = (operation?.state === "done" ? (operation.result ?? {}) : {}) as Result;
  return (
    <Stack gap={1}>
      <HStack gap={3} wrap="wrap">
        <Button disabled={isBusy || !isValid} onClick={request} size="sm" variant="outline">
          Record the next batches
        </Button>
        <chakra.label alignItems="center" display="flex" fontSize="sm" gap={1}>
          Batches <Input inputMode="numeric" onChange={(event) => setBatches(event.target.value)} size="xs" value={batches} width="4em" />
        </chakra.label>
        <chakra.label alignItems="center" display="flex" fontSize="sm" gap={1}>
          Ranks <Input onChange={(event) => setRanks(event.target.value)} size="xs" value={ranks} width="6em" />
        </chakra.label>
        <chakra.label alignItems="center" display="flex" fontSize="sm" gap={1}>
          <input checked={withStack} onChange={(event) => setWithStack(event.target.checked)} type="checkbox" /> with lines of the program
        </chakra.label>
      </HStack>
      <Text aria-live="polite" color="fg.muted" fontSize="sm">
        {isBusy ? "Requested from the hosts." : isValid ? "" : `Batches from 1 to ${MOST_BATCHES}, and numbers of ranks: 0, 3.`}
        {result.ranks === undefined || result.ranks.length === 0
          ? ""
          : `Recorded from the next batch on by ${result.ranks.length === 1 ? "rank" : "ranks"} ${ranges(result.ranks)}. The trace is below once it has been written and copied. While it is written, the other ranks wait.`}
      </Text>
      {(result.problems ?? []).map((problem) => (
        <Text color="fg.warning" fontSize="sm" key={problem}>
          {visible(problem)}
        </Text>
      ))}
      {error === null ? null : <ErrorNotice error={error} onRetry={request} what="Trace" />}
    </Stack>
  );
};

/** Work on request: stacks of running ranks, a trace of their next batches, and the traces that exist as flame graphs. */
export const OnDemand = ({ trial }: { trial: Trial }) => {
  const [view, setView] = useUrlState(USUAL);
  const isEnded = ENDED.has(trial.state);
  const isRunning = trial.state === "running";
  const { data } = useData<Outputs>(`trials/${trial.trial_id}/outputs`, { everyMs: isEnded ? null : 2 * LIVE_MS });
  const traces = (data?.rows ?? []).filter(isTrace).sort((a, b) => b.at.localeCompare(a.at));
  const chosen = traces.find(({ path }) => path === view.trace) ?? traces[0];
  if (!isRunning && chosen === undefined) return null;
  return (
    <Stack gap={3}>
      {isRunning ? (
        <>
          <Heading size="sm">On request</Heading>
          <StacksPanel trialId={trial.trial_id} />
          {trial.may_edit ? <Recorder trialId={trial.trial_id} /> : null}
        </>
      ) : null}
      {chosen === undefined ? null : (
        <>
          <HStack gap={3} wrap="wrap">
            <Heading size="sm">Trace</Heading>
            <FilterSelect all="" label="Trace" multiple={false} onChange={([trace = ""]) => setView({ trace })} options={traces.map(({ path }) => path)} render={(path) => visible(path.slice("work/traces/".length))} value={[chosen.path]} />
            <Text color="fg.muted" fontSize="sm">
              {bytes(chosen.size_bytes)}, <Time at={chosen.at} />
            </Text>
          </HStack>
          <FlamePanel key={chosen.path} output={chosen} trialId={trial.trial_id} />
        </>
      )}
    </Stack>
  );
};
