/** Reading and zooming of curves with the keyboard. */
import { type Curve, valueOf } from "./curves";
import { nearest } from "./lines";

interface Place {
  readonly x: number;
  readonly series: string | null;
}

export type Step =
  | { readonly kind: "point"; readonly curve: Curve; readonly x: number; readonly y: number }
  | { readonly kind: "zoom"; readonly range: [number, number] | null };

const DIRECTIONS = new Map([["ArrowLeft", -1], ["ArrowRight", 1], ["PageUp", -10], ["PageDown", 10]]);

const pointAt = (curve: Curve, index: number, direction: number): Step | null => {
  const { xs } = curve.points;
  for (let at = index; at >= 0 && at < xs.length; at += direction) {
    const y = valueOf(curve, at);
    if (y !== null) return { kind: "point", curve, x: xs[at] ?? 0, y };
  }
  return null;
};

const zoomed = (key: string, x: number, [min, max]: readonly [number, number]): Step => {
  const half = ((max - min) / 2) * (key === "+" ? 0.5 : 2);
  return { kind: "zoom", range: [Math.max(x - half, key === "+" ? min : -Infinity), Math.min(x + half, key === "+" ? max : Infinity)] };
};

/** Return the effect of a key, or null for a key without one. */
export const stepped = (key: string, curves: readonly Curve[], place: Place | null, shown: readonly [number, number]): Step | null => {
  if (key === "0" || key === "Escape") return { kind: "zoom", range: null };
  if (key === "+" || key === "-") return zoomed(key, place?.x ?? (shown[0] + shown[1]) / 2, shown);
  const at = Math.max(0, curves.findIndex(({ id }) => id === place?.series));
  const curve = curves[at];
  if (curve === undefined) return null;
  const last = curve.points.xs.length - 1;
  if (key === "Home") return pointAt(curve, 0, 1);
  if (key === "End") return pointAt(curve, last, -1);
  if (key === "ArrowUp" || key === "ArrowDown") {
    const other = curves[(at + (key === "ArrowUp" ? -1 : 1) + curves.length) % curves.length] ?? curve;
    return pointAt(other, place === null ? 0 : Math.max(0, nearest(other.points, place.x)), 1);
  }
  const by = DIRECTIONS.get(key);
  if (by === undefined) return null;
  if (place === null) return pointAt(curve, by > 0 ? 0 : last, Math.sign(by));
  const next = Math.min(last, Math.max(0, nearest(curve.points, place.x) + by));
  return pointAt(curve, next, Math.sign(by));
};
