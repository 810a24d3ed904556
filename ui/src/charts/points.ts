/** Points of a scatter chart: their paint, and the one under the pointer. */
import { type Mode, sequential } from "./palette";

/** Points with places from 0 to 1 on both axes, and a place on the colour scale. */
export interface PointSet {
  readonly xs: Float32Array;
  readonly ys: Float32Array;
  /** NaN for a point without a colour. */
  readonly shades: Float32Array;
  /** 1 for points that are drawn fully; the remaining ones are faint. */
  readonly marks: Uint8Array | null;
}

/** Shades that are painted together. */
const BUCKETS = 24;

/** Return a shift of a point that is always the same, from -0.5 to 0.5, so that points of one category do not hide each other. */
export const jitter = (number: number): number => {
  const mixed = Math.imul((number + 1) ^ 0x9e3779b9, 0x85ebca6b);
  return (((mixed ^ (mixed >>> 13)) >>> 0) % 1000) / 1000 - 0.5;
};

/** Return the shade bucket of each point, -1 for one without a colour. */
export const bucketOf = (shade: number): number => (Number.isNaN(shade) ? -1 : Math.min(BUCKETS - 1, Math.floor(shade * BUCKETS)));

/** Return the colour of a bucket. */
export const bucketColor = (bucket: number, mode: Mode, without: string): string => (bucket < 0 ? without : sequential((bucket + 0.5) / BUCKETS, mode));

/** Return the indices of the points of each bucket, worst first, so that the best points are painted last. */
export const buckets = (set: PointSet, marked: boolean): Map<number, number[]> => {
  const groups = new Map<number, number[]>();
  for (let index = 0; index < set.xs.length; index += 1) {
    if (set.marks !== null && (set.marks[index] === 1) !== marked) continue;
    if (set.marks === null && !marked) continue;
    const bucket = bucketOf(set.shades[index] ?? Number.NaN);
    const group = groups.get(bucket);
    if (group === undefined) groups.set(bucket, [index]);
    else group.push(index);
  }
  return new Map([...groups].sort(([a], [b]) => a - b));
};

/** Return the index of the point nearest to a place in pixels, or -1 if none is within a radius. */
export const pointAt = (set: PointSet, toX: (x: number) => number, toY: (y: number) => number, left: number, top: number, radius: number): number => {
  let best = -1;
  let least = radius * radius;
  for (let index = 0; index < set.xs.length; index += 1) {
    if (set.marks !== null && set.marks[index] !== 1) continue;
    const dx = toX(set.xs[index] ?? Number.NaN) - left;
    const dy = toY(set.ys[index] ?? Number.NaN) - top;
    const distance = dx * dx + dy * dy;
    if (distance <= least) [best, least] = [index, distance];
  }
  return best;
};
