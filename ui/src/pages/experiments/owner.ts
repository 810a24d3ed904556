/** The owner whose experiments a list shows. */
import { useEffect } from "react";

import { type Me } from "../../api/types";
import { useData } from "../../hooks/useData";

/** Value of the address for the experiments of all owners. */
export const EVERYONE = "*";

/**
 * Return the owner whose experiments are shown: those of the user unless the address says otherwise or the user has none.
 *
 * The choice is written into the address, so that a link shows the same to another user.
 *
 * @param chosen of the address; empty: nothing is chosen yet
 */
export const useOwner = (chosen: string, choose: (owner: string) => void): { owner: string | null; user: string } => {
  const { data, error } = useData<Me>("me", { everyMs: null });
  const own = data?.owns_experiments === true ? data.user : "";
  useEffect(() => {
    if (chosen === "" && own !== "") choose(own);
  }, [chosen, own, choose]);
  const isKnown = chosen !== "" || data !== undefined || error !== null;
  return { owner: isKnown ? (chosen === EVERYONE ? "" : chosen === "" ? own : chosen) : null, user: own };
};
