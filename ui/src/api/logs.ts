/** Answers about logs of ranks, and requests to copy a log from its host. */
import { execute, type Operation } from "./operations";
import { type components } from "./schema";

type Schemas = components["schemas"];

export type LogLine = Schemas["LogLine"];
export type LogLines = Schemas["LogLines"];
export type LogMatches = Schemas["LogMatches"];

/** A rank's log. Null for the attempt is the latest one. */
export interface LogPlace {
  trialId: number;
  rank: number;
  attempt: number | null;
}

/**
 * Copy what the store does not have yet of a log from its host. Return why that failed, or null.
 *
 * @param notify receives what it waits for
 */
export const copyLog = async ({ trialId, rank, attempt }: LogPlace, signal: AbortSignal, notify: (operation: Operation) => void): Promise<string | null> => {
  const { state, error } = await execute("log", { trial_id: trialId, rank, attempt, keep: true, through: null }, signal, notify);
  return state === "failed" ? (error ?? "The host did not send it.") : null;
};
