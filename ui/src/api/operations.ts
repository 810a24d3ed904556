/** Work on hosts that the API server requests from followers and from runs of a DAG. */
import { fetchData, send } from "./client";
import { type components } from "./schema";

export type Operation = components["schemas"]["Operation"];

/** Pause between two polls, in milliseconds. */
const POLL_MS = 1_000;

/** A follower polls each second. After this time a run of the DAG for operations is requested instead. */
const FOLLOWER_MS = 15_000;

const pause = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, POLL_MS);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

/**
 * Request an operation and follow it to its end. It is cancelled when the signal aborts.
 *
 * @param kind its route: "stacks"
 */
export const execute = async (kind: string, body: object, signal: AbortSignal, onChange: (found: Operation) => void): Promise<Operation> => {
  let found = await send<Operation>("POST", `operations/${kind}`, body);
  let since = performance.now();
  onChange(found);
  try {
    while (found.state !== "done" && found.state !== "failed") {
      await pause(signal);
      signal.throwIfAborted();
      if (found.state === "waiting" && found.through === "follower" && performance.now() - since > FOLLOWER_MS) {
        await send("DELETE", `operations/${found.operation_id}`);
        found = await send<Operation>("POST", `operations/${kind}`, { ...body, through: "dag" });
        since = performance.now();
      } else {
        found = (await fetchData<Operation>(`operations/${found.operation_id}`, null, signal))?.data ?? found;
      }
      onChange(found);
    }
    return found;
  } catch (error) {
    // An operation that waits counts for the limit of the user.
    if (signal.aborted) send("DELETE", `operations/${found.operation_id}`).catch(() => undefined);
    throw error;
  }
};
