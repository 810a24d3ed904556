/** Layout of a flame graph: rows of boxes below each other, each as wide as its share of its caller. */
import { type FlameNode } from "../../api/trial";

export interface FlameBox {
  /** Index of the node. */
  readonly index: number;
  readonly depth: number;
  /** Left edge and width as shares of the whole chart. */
  readonly left: number;
  readonly width: number;
}

/** Boxes that are thinner than this share of the chart are not drawn. */
const THINNEST = 0.001;

/** Return the nodes from one up to its outermost caller, the outermost first. */
export const callersOf = (nodes: readonly FlameNode[], index: number): number[] => {
  const found: number[] = [];
  // Callers come first in the list, so that no cycle is possible in an honest one.
  for (let at: number | null = index; at !== null && !found.includes(at); at = nodes[at]?.parent ?? null) found.unshift(at);
  return found;
};

/** Return the sum of the outermost calls. */
const totalOf = (nodes: readonly FlameNode[]): number => nodes.reduce((sum, { parent, total_us }) => sum + (parent === null ? total_us : 0), 0);

/**
 * Return the boxes of a chart.
 *
 * @param zoom node that takes the whole width below its callers, or null for all of them
 */
export const flameBoxes = (nodes: readonly FlameNode[], zoom: number | null): FlameBox[] => {
  const callers = zoom === null ? [] : callersOf(nodes, zoom);
  const whole = zoom === null ? totalOf(nodes) : (nodes[zoom]?.total_us ?? 0);
  const found = new Map<number, FlameBox>(callers.map((index, depth) => [index, { index, depth, left: 0, width: 1 }]));
  if (whole <= 0) return [...found.values()];
  /** Next free left edge below a node; -1 stands for the outermost level. */
  const next = new Map<number, number>();
  nodes.forEach(({ parent, total_us }, index) => {
    if (found.has(index)) return;
    const above = parent === null ? undefined : found.get(parent);
    if (parent === null ? zoom !== null : above === undefined || (zoom !== null && parent !== zoom && callers.includes(parent))) return;
    const edge = next.get(parent ?? -1) ?? above?.left ?? 0;
    const width = Math.min(total_us / whole, (above === undefined ? 1 : above.left + above.width) - edge);
    next.set(parent ?? -1, edge + width);
    if (width >= THINNEST) found.set(index, { index, depth: (above?.depth ?? -1) + 1, left: edge, width });
  });
  return [...found.values()];
};

/** A name of the program and its own time in all places. */
export interface FlameRow {
  readonly name: string;
  readonly self_us: number;
  readonly calls: number;
}

/** Return names by their own time, the longest first. */
export const bySelfTime = (nodes: readonly FlameNode[], most: number): FlameRow[] => {
  const sums = new Map<string, { self_us: number; calls: number }>();
  for (const { name, self_us, calls } of nodes) {
    const before = sums.get(name) ?? { self_us: 0, calls: 0 };
    sums.set(name, { self_us: before.self_us + self_us, calls: before.calls + calls });
  }
  return [...sums].map(([name, sum]) => ({ name, ...sum })).sort((a, b) => b.self_us - a.self_us).slice(0, most);
};
