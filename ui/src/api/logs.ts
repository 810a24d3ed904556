/** Answers about logs of ranks, and requests to copy a log from its host. */
import { ApiError, fetchData, send } from "./client";
import { type components } from "./schema";

type Schemas = components["schemas"];

export type LogLine = Schemas["LogLine"];
export type LogLines = Schemas["LogLines"];
export type LogMatches = Schemas["LogMatches"];
export type Operation = Schemas["Operation"];

/** A rank's log. Null for the attempt is the latest one. */
export interface LogPlace {
  trialId: number;
  rank: number;
  attempt: number | null;
}

const POLL_MS = 700;
/** A follower polls each second. After this time, a run of the DAG is requested instead. */
const FOLLOWER_MS = 15_000;

const sleep = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new ApiError("aborted", 0, "The request was cancelled."));
    });
  });

/**
 * Copy what the store does not have yet of a log from its host. Return why that failed, or null.
 *
 * @param notify receives what it waits for
 */
export const copyLog = async ({ trialId, rank, attempt }: LogPlace, signal: AbortSignal, notify: (operation: Operation) => void): Promise<string | null> => {
  const request = (through: "dag" | null) => send<Operation>("POST", "operations/log", { trial_id: trialId, rank, attempt, keep: true, through });
  let operation = await request(null);
  const until = Date.now() + FOLLOWER_MS;
  try {
    for (;;) {
      notify(operation);
      await sleep(POLL_MS, signal);
      const answer = await fetchData<Operation>(`operations/${operation.operation_id}`, null, signal);
      if (answer !== null) operation = answer.data;
      if (operation.state === "done") return null;
      if (operation.state === "failed") return operation.error ?? "The host did not send it.";
      if (operation.through === "follower" && operation.state === "waiting" && Date.now() >= until) {
        await send("DELETE", `operations/${operation.operation_id}`);
        operation = await request("dag");
      }
    }
  } catch (error) {
    // An operation that waits counts for the limit of the user.
    if (signal.aborted) send("DELETE", `operations/${operation.operation_id}`).catch(() => undefined);
    throw error;
  }
};
