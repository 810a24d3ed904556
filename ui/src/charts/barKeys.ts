/** Reading of the bars of a timeline with the keyboard. */
import { type Bar } from "./slotTimeline";

const middle = ({ fromS, toS }: Pick<Bar<unknown>, "fromS" | "toS">): number => (fromS + toS) / 2;

/** Return the bar that a key leads to, or null for a key without an effect. Without a present bar it is the first or the last one. */
export const barByKey = <S>(key: string, bars: readonly Bar<S>[], now: Bar<S> | null): Bar<S> | null => {
  const ordered = [...bars].sort((a, b) => a.row - b.row || a.fromS - b.fromS);
  // Bars are made again when data arrives, so that the present one is found by its place.
  const at = now === null ? -1 : ordered.findIndex(({ row, fromS, toS }) => row === now.row && fromS === now.fromS && toS >= now.toS);
  if (key === "Home") return ordered[0] ?? null;
  if (key === "End") return ordered.at(-1) ?? null;
  if (key === "ArrowRight") return ordered[Math.min(ordered.length - 1, at + 1)] ?? null;
  if (key === "ArrowLeft") return ordered[at < 0 ? ordered.length - 1 : Math.max(0, at - 1)] ?? null;
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const from = ordered[at];
  if (from === undefined) return ordered[0] ?? null;
  const rows = ordered.map(({ row }) => row).filter((row) => (key === "ArrowDown" ? row > from.row : row < from.row));
  if (rows.length === 0) return from;
  const next = key === "ArrowDown" ? Math.min(...rows) : Math.max(...rows);
  return ordered.filter(({ row }) => row === next).reduce((best, bar) => (Math.abs(middle(bar) - middle(from)) < Math.abs(middle(best) - middle(from)) ? bar : best));
};
