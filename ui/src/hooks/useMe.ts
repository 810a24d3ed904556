import { createContext, useContext } from "react";

import { type Me } from "../api/types";
import { useData } from "./useData";

const EVERY_MS = 60_000;

/** User and general permissions, which the shell of a page requests once for all its parts. */
export const MeContext = createContext<Me | undefined>(undefined);

/** Request the user and the general permissions. For the shell of a page; its parts call `useMe`. */
export const useMeData = (): Me | undefined => useData<Me>("me", { everyMs: EVERY_MS }).data;

/** Return the user and the general permissions. Rights on one experiment or trial are in its row, as `may_edit`. */
export const useMe = (): Me | undefined => useContext(MeContext);
