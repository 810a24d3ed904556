import { useEffect, useState } from "react";

import { withQuery } from "../../api/client";
import { type Utilization } from "../../api/types";
import { useData } from "../../hooks/useData";

/** The lines show the last hour in minutes, and change slowly. */
const SPAN_S = 3_600;
const POINTS = 60;
const EVERY_MS = 10_000;
/** Pause after the last scroll before a request, in milliseconds. */
const REST_MS = 300;

/** Return the utilization of the visible hosts by name. Hosts without data are absent. */
export const useUtilization = (visible: readonly string[]): Map<string, Utilization["hosts"][number]> => {
  const key = [...visible].sort().join("\n");
  const [rested, setRested] = useState(key);
  useEffect(() => {
    const timer = setTimeout(() => setRested(key), REST_MS);
    return () => clearTimeout(timer);
  }, [key]);
  const path = rested === "" ? null : withQuery("cluster/utilization", { host: rested.split("\n"), span_s: SPAN_S, points: POINTS });
  const { data } = useData<Utilization>(path, { everyMs: EVERY_MS, keepPrevious: true });
  return new Map(data?.hosts.map((host) => [host.name, host]));
};
