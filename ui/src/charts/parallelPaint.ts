/** Lines of parallel coordinates on a canvas, and the line under the pointer. */
import { bucketColor, bucketOf } from "./points";
import { inFrames } from "./frames";
import { type ChartColors } from "./theme";

/** Lines through places on axes. */
export interface Lines {
  /** Places per axis, from left to right. */
  readonly columns: readonly Float32Array[];
  /** Place of each line on the colour scale, NaN without one. */
  readonly shades: Float32Array;
}

/** Area of the axes in pixels of CSS. */
export interface Box {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

/** Lines in one stroke. More take too long for a frame, fewer cost a call each. */
const CHUNK = 48;

/** Return the x of the n-th of several axes. */
export const axisX = (box: Box, index: number, axes: number): number => box.left + (axes <= 1 ? box.width / 2 : (index / (axes - 1)) * box.width);

/** Return the y of a place. */
export const placeY = (box: Box, place: number): number => box.top + (1 - place) * box.height;

/** Return groups of lines of one colour that are painted in one stroke, the best ones last. */
export const chunks = (shades: Float32Array, take: (index: number) => boolean): { bucket: number; lines: number[] }[] => {
  const groups = new Map<number, number[]>();
  for (let index = 0; index < shades.length; index += 1) {
    if (!take(index)) continue;
    const bucket = bucketOf(shades[index] ?? Number.NaN);
    const group = groups.get(bucket);
    if (group === undefined) groups.set(bucket, [index]);
    else group.push(index);
  }
  return [...groups]
    .sort(([a], [b]) => a - b)
    .flatMap(([bucket, lines]) => Array.from({ length: Math.ceil(lines.length / CHUNK) }, (_, at) => ({ bucket, lines: lines.slice(at * CHUNK, (at + 1) * CHUNK) })));
};

const addLine = (ctx: CanvasRenderingContext2D, { columns }: Lines, index: number, box: Box): void => {
  columns.forEach((places, axis) => {
    const [x, y] = [axisX(box, axis, columns.length), placeY(box, places[index] ?? 0)];
    if (axis === 0) ctx.moveTo(x, y);
    else ctx.lineTo(x, y);
  });
  if (columns.length !== 1) return;
  const y = placeY(box, columns[0]?.[index] ?? 0);
  ctx.moveTo(box.left + box.width / 2 - 12, y);
  ctx.lineTo(box.left + box.width / 2 + 12, y);
};

/** Fit a canvas to its place, clear it, and return its context in pixels of CSS. */
export const cleared = (canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null => {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const ctx = canvas.getContext("2d");
  ctx?.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx?.clearRect(0, 0, width, height);
  return ctx;
};

/** Paint lines, spread over frames. Return a function that ends it. */
export const paintLines = (
  ctx: CanvasRenderingContext2D, lines: Lines, box: Box, colors: ChartColors, take: (index: number) => boolean, faint: boolean, done?: () => void,
): (() => void) => {
  const parts = chunks(lines.shades, take);
  const total = parts.reduce((sum, part) => sum + part.lines.length, 0);
  const alpha = faint ? 0.08 : total > 3_000 ? 0.25 : total > 500 ? 0.45 : 0.75;
  return inFrames(
    parts.length,
    (at) => {
      const part = parts[at];
      if (part === undefined) return;
      [ctx.globalAlpha, ctx.lineWidth] = [alpha, total > 500 ? 1 : 1.5];
      ctx.strokeStyle = faint ? colors.muted : bucketColor(part.bucket, colors.mode, colors.muted);
      ctx.beginPath();
      part.lines.forEach((index) => addLine(ctx, lines, index, box));
      ctx.stroke();
    },
    done,
    1,
  );
};

/** Paint one line above the others. */
export const paintOne = (ctx: CanvasRenderingContext2D, lines: Lines, index: number, box: Box, colors: ChartColors): void => {
  for (const [color, width] of [[colors.bg, 6], [colors.fg, 2.5]] as const) {
    [ctx.globalAlpha, ctx.strokeStyle, ctx.lineWidth] = [1, color, width];
    ctx.beginPath();
    addLine(ctx, lines, index, box);
    ctx.stroke();
  }
};

/** Return the selected line nearest to a place, or -1 if none is within a distance. */
export const lineAt = ({ columns }: Lines, marks: Uint8Array, box: Box, x: number, y: number, reach: number): number => {
  const axes = columns.length;
  const step = axes <= 1 ? box.width : box.width / (axes - 1);
  const left = Math.min(Math.max(0, axes - 2), Math.max(0, Math.floor((x - box.left) / step)));
  const share = axes <= 1 ? 0 : Math.min(1, Math.max(0, (x - axisX(box, left, axes)) / step));
  const [from, to] = [columns[left], columns[Math.min(axes - 1, left + 1)]];
  if (from === undefined || to === undefined) return -1;
  let best = -1;
  let least = reach;
  for (let index = 0; index < marks.length; index += 1) {
    if (marks[index] !== 1) continue;
    const place = (from[index] ?? 0) + ((to[index] ?? 0) - (from[index] ?? 0)) * share;
    const distance = Math.abs(placeY(box, place) - y);
    if (distance < least) [best, least] = [index, distance];
  }
  return best;
};
