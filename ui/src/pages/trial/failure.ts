/** Addresses and words of a failure. */
import { type Baseline, type NextStep } from "../../api/failures";
import { type Trial } from "../../api/trial";
import { paths } from "../../app/paths";

/** Return the address of the page on which a step can be done or seen, or null. */
export const stepPath = ({ page, host }: NextStep, trial: Pick<Trial, "task" | "trial_id">, baseline: Baseline | null): string | null => {
  switch (page) {
    case null:
    case undefined:
      return null;
    case "compare":
      return baseline === null ? null : paths.compare([baseline.trial_id, trial.trial_id]);
    case "cluster":
      return host === null || host === undefined ? paths.cluster : `${paths.cluster}?q=${encodeURIComponent(host)}`;
    case "queue":
      return paths.queue;
    case "task_log":
      return paths.task(trial.task);
    default:
      return `${paths.trial(trial.trial_id)}?tab=${page}`;
  }
};

/** Return how often the trial has failed before, in words, or null. */
export const sameWords = (attempts: readonly number[]): string | null =>
  attempts.length === 0 ? null : `${attempts.length === 1 ? "Attempt" : "Attempts"} ${attempts.join(", ")} failed in the same way.`;
