import { useCallback, useEffect, useRef, useState } from "react";

import { ApiError, send } from "../../api/client";
import { type Validation } from "../../api/experiment";

/** Pause of the keys before a text is validated, in milliseconds. */
const PAUSE_MS = 350;

/** What the API server knows about a text. */
export interface Checked {
  /** Outcome of the newest text that was answered. */
  outcome: Validation | null;
  error: ApiError | null;
  /** Whether the outcome belongs to an older text. */
  pending: boolean;
  /** Validate again. */
  retry: () => void;
}

interface Inputs {
  config: string;
  template: string | null;
  forkOf: number | null;
}

const keyOf = ({ config, template, forkOf }: Inputs): string => JSON.stringify([config, template, forkOf]);

/** Validate a configuration a short time after each change. Answers to older texts are dropped. */
export const useValidation = (inputs: Inputs): Checked => {
  const key = keyOf(inputs);
  const [state, setState] = useState<{ key: string | null; outcome: Validation | null; error: ApiError | null }>({ key: null, outcome: null, error: null });
  const [round, setRound] = useState(0);
  const newest = useRef(inputs);
  useEffect(() => {
    newest.current = inputs;
  });
  useEffect(() => {
    let isGone = false;
    const { config, template, forkOf } = newest.current;
    if (config.trim() === "") return undefined;
    const timer = setTimeout(async () => {
      try {
        const outcome = await send<Validation>("POST", "configs/validate", { config, template, fork_of: forkOf });
        if (!isGone) setState({ key, outcome, error: null });
      } catch (thrown) {
        const error = thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown));
        if (!isGone) setState((old) => ({ ...old, key, error }));
      }
    }, PAUSE_MS);
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [key, round]);
  const retry = useCallback(() => setRound((count) => count + 1), []);
  const isEmpty = inputs.config.trim() === "";
  return { outcome: isEmpty ? null : state.outcome, error: isEmpty ? null : state.error, pending: !isEmpty && state.key !== key, retry };
};
