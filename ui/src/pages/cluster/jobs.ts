/** Words about jobs of external schedulers and about their clusters. */
import { type Partition, type SchedulerFacts } from "../../api/types";
import { plural } from "../../format/numbers";
import { duration } from "../../format/times";

/** Nodes that a text lists. */
const MOST_NODES = 8;

/** Return the names of nodes, the first ones of many. */
export const nodesText = (nodes: readonly string[]): string =>
  nodes.length <= MOST_NODES ? nodes.join(", ") : `${nodes.slice(0, MOST_NODES).join(", ")} and ${nodes.length - MOST_NODES} more`;

/** Return the sizes of the nodes of a partition: 2 nodes with 8 slots, 1 node with 4 slots. */
export const sizesText = ({ sizes }: Partition): string =>
  sizes.map(({ nodes, slots }) => `${plural(nodes, "node")} with ${plural(slots, "slot")}`).join(", ") || "no node with a slot";

/** Return the partition of a pool's jobs with its limits, as sentences. */
export const partitionText = (facts: SchedulerFacts): string => {
  const used = facts.partitions.find(({ is_used }) => is_used);
  if (used === undefined) return facts.problem || `${facts.program}: no partition`;
  const limit = facts.time_limit_s === null ? "" : ` A job lasts at most ${duration(facts.time_limit_s)}.`;
  return `${facts.program}, partition ${used.name} (${used.state}): ${used.usable_nodes} of ${plural(used.nodes, "node")} usable, ${sizesText(used)}.${limit}`;
};
