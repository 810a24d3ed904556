import { type Me } from "../api/types";
import { useData } from "./useData";

const EVERY_MS = 60_000;

/** Return the user and the general permissions. Rights on one experiment or trial are in its row, as `may_edit`. */
export const useMe = (): Me | undefined => useData<Me>("me", { everyMs: EVERY_MS }).data;
