import { useCallback, useEffect, useRef, useState } from "react";

import { ApiError, fetchData, send } from "../api/client";
import { type components } from "../api/schema";

export type Operation = components["schemas"]["Operation"];

/** Pause between two polls, in milliseconds. */
const POLL_MS = 1_000;

/** A follower polls each second. After this time a run of the DAG for operations is requested instead. */
const FOLLOWER_MS = 15_000;

export interface OperationState {
  /** Null before the first request. */
  readonly operation: Operation | null;
  readonly isBusy: boolean;
  readonly error: ApiError | null;
}

const IDLE: OperationState = { operation: null, isBusy: false, error: null };

const asError = (error: unknown): ApiError => (error instanceof ApiError ? error : new ApiError("server", 0, String(error)));

const pause = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, POLL_MS);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

const execute = async (kind: string, body: object, signal: AbortSignal, onChange: (found: Operation) => void): Promise<Operation> => {
  let found = await send<Operation>("POST", `operations/${kind}`, body);
  let since = performance.now();
  onChange(found);
  while (found.state !== "done" && found.state !== "failed") {
    await pause(signal);
    if (signal.aborted) break;
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
};

/**
 * Request work on hosts, and follow it to its end. The work ends when the component leaves the page.
 *
 * @param kind route of the operation: "stacks"
 */
export const useOperation = (kind: string): [OperationState, (body: object) => void] => {
  const [state, setState] = useState(IDLE);
  const current = useRef<AbortController | null>(null);
  useEffect(() => () => current.current?.abort(), []);
  const start = useCallback(
    (body: object) => {
      current.current?.abort();
      const control = new AbortController();
      current.current = control;
      setState({ ...IDLE, isBusy: true });
      const set = (next: OperationState) => {
        if (!control.signal.aborted) setState(next);
      };
      execute(kind, body, control.signal, (operation) => set({ operation, isBusy: true, error: null })).then(
        (operation) => {
          if (control.signal.aborted) void send("DELETE", `operations/${operation.operation_id}`).catch(() => undefined);
          set({ operation, isBusy: false, error: operation.state === "failed" ? new ApiError("conflict", 409, operation.error ?? "It failed.") : null });
        },
        (error: unknown) => set({ ...IDLE, error: asError(error) }),
      );
    },
    [kind],
  );
  return [state, start];
};
