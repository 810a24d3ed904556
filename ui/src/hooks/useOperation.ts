import { useCallback, useEffect, useRef, useState } from "react";

import { ApiError } from "../api/client";
import { execute, type Operation } from "../api/operations";

export interface OperationState {
  /** Null before the first request. */
  readonly operation: Operation | null;
  readonly isBusy: boolean;
  readonly error: ApiError | null;
}

const IDLE: OperationState = { operation: null, isBusy: false, error: null };

const asError = (error: unknown): ApiError => (error instanceof ApiError ? error : new ApiError("server", 0, String(error)));

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
        (operation) => set({ operation, isBusy: false, error: operation.state === "failed" ? new ApiError("conflict", 409, operation.error ?? "It failed.") : null }),
        (error: unknown) => set({ ...IDLE, error: asError(error) }),
      );
    },
    [kind],
  );
  return [state, start];
};
