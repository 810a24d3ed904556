/** Names of metrics in addresses of pages. */
import { type Group, type MetricName } from "../api/charts";

/** Return the name with its group, as pages and addresses write it: validation/loss. */
export const metricKey = ({ group, name }: MetricName): string => `${group}/${name}`;

/** Return the metric of an address, or null for a text that is none. */
export const metricOf = (key: string): MetricName | null => {
  const group = key.slice(0, key.indexOf("/"));
  const name = key.slice(group.length + 1);
  return (group === "validation" || group === "training" || group === "builtin") && name !== "" ? { group: group satisfies Group, name } : null;
};

/** Return the metrics in the order of interest: the searcher's first, then validation before training, then by name. Built-in metrics are last. */
export const inOrder = (metrics: readonly MetricName[], first: string | null): MetricName[] => {
  const place = ({ group, name }: MetricName) => (group === "builtin" ? 4 : (name === first ? 0 : 2) + (group === "validation" ? 0 : 1));
  return [...metrics].sort((a, b) => place(a) - place(b) || a.name.localeCompare(b.name, "en", { numeric: true }));
};

/** Return names with the groups that have them: one chart shows training and validation of a metric. */
export const byName = (metrics: readonly MetricName[]): { name: string; groups: Group[] }[] => {
  const found = new Map<string, Group[]>();
  for (const { group, name } of metrics) {
    const groups = found.get(name);
    if (groups === undefined) found.set(name, [group]);
    else if (!groups.includes(group)) groups.push(group);
  }
  return [...found].map(([name, groups]) => ({ name, groups }));
};
