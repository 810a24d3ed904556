import { memo } from "react";

import { lonePoints } from "../charts/lines";

interface Props {
  /** Values from the oldest to the newest; null leaves a gap. */
  values: readonly (number | null)[];
  /** Value at the upper edge. */
  maximum: number;
  /** Name for screen readers. */
  label: string;
  width?: number;
  height?: number;
}

/** Return the outline of a line with gaps, for a box of a width and a height. */
export const outline = (values: readonly (number | null)[], maximum: number, width: number, height: number): string => {
  const step = width / Math.max(1, values.length - 1);
  let pen = "M";
  let path = "";
  values.forEach((value, index) => {
    if (value === null || !Number.isFinite(value)) {
      pen = "M";
      return;
    }
    const share = Math.max(0, Math.min(1, value / maximum));
    path += `${pen}${(index * step).toFixed(1)} ${(height - 1 - share * (height - 2)).toFixed(1)}`;
    // A point between two gaps is drawn as a short line.
    if (pen === "M") path += "h0.1";
    pen = "L";
  });
  return path;
};

/** Return the points that no line leads to, for a box of a width and a height. */
export const lone = (values: readonly (number | null)[], maximum: number, width: number, height: number): string =>
  lonePoints({ ys: values }, 0, values.length - 1)
    .map((index) => outline(values.map((value, at) => (at === index ? value : null)), maximum, width, height))
    .join("");

/** A small line without axes. */
export const Sparkline = memo(({ values, maximum, label, width = 120, height = 24 }: Props) => (
  <svg aria-label={label} height={height} role="img" style={{ color: "var(--chakra-colors-running-solid)", display: "block" }} viewBox={`0 0 ${width} ${height}`} width={width}>
    <path d={`M0 ${height - 0.5}H${width}`} opacity={0.25} stroke="currentColor" />
    <path d={outline(values, maximum, width, height)} fill="none" stroke="currentColor" strokeLinecap="round" strokeLinejoin="round" strokeWidth={1.5} />
    <path d={lone(values, maximum, width, height)} fill="none" stroke="currentColor" strokeLinecap="round" strokeWidth={4} />
  </svg>
));
Sparkline.displayName = "Sparkline";
