import { Box } from "@chakra-ui/react";
import { memo, type ReactNode, useState } from "react";

import { visible } from "../lib/visible";
import { type Dimension, labelsOf } from "./dimensions";
import { type Points } from "./lines";
import { PlotBox } from "./PlotBox";
import { type Area, type AxisSpec, type PlotHost } from "./plotHost";
import { PointerNote } from "./PointerNote";
import { bucketColor, buckets, pointAt, type PointSet } from "./points";
import { type ChartColors, useChartColors } from "./theme";

/** Paint below the points, in places from 0 to 1. */
export type Under = (ctx: CanvasRenderingContext2D, area: Area, colors: ChartColors) => void;

interface Props {
  label: string;
  x: Dimension;
  y: Dimension;
  points: PointSet;
  /** A step line over the points, in places from 0 to 1. */
  line?: Points | null;
  /** Paints below the points; a constant between renders. */
  under?: Under | null;
  height?: number;
  /** Facts about a point. */
  describe: (index: number) => ReactNode;
  onPick?: (index: number) => void;
}

/** Free space around the places from 0 to 1. Points without a value are below 0. */
const MARGIN = 0.05;

/** Points above this number are painted as squares, which take a third of the time. */
const MANY = 1_500;

const REACH_PX = 10;

const axisOf = (dimension: Dimension, most: number): AxisSpec => ({
  scale: { min: dimension.absent > 0 ? -0.13 : -MARGIN, max: 1 + MARGIN, log: false },
  kind: "number",
  zone: "UTC",
  name: `${visible(dimension.name)}${dimension.scale?.log === true ? " (log)" : ""}`,
  labels: [...(dimension.absent > 0 ? [{ value: -0.08, text: "absent" }] : []), ...labelsOf(dimension, most).map(({ place, text }) => ({ value: place, text }))],
});

const paint = (ctx: CanvasRenderingContext2D, area: Area, set: PointSet, line: Points | null, colors: ChartColors, hasEdge: boolean): void => {
  const radius = (set.xs.length > MANY ? 2 : set.xs.length > 300 ? 3 : 4) * area.ratio;
  for (const marked of [false, true]) {
    ctx.globalAlpha = marked ? 0.85 : 0.12;
    for (const [bucket, indices] of buckets(set, marked)) {
      ctx.fillStyle = bucketColor(bucket, colors.mode, colors.muted);
      ctx.beginPath();
      for (const index of indices) {
        const [x, y] = [area.toX(set.xs[index] ?? Number.NaN), area.toY(set.ys[index] ?? Number.NaN)];
        if (set.xs.length > MANY) ctx.rect(x - radius, y - radius, 2 * radius, 2 * radius);
        else {
          ctx.moveTo(x + radius, y);
          ctx.arc(x, y, radius, 0, 2 * Math.PI);
        }
      }
      ctx.fill();
      if (hasEdge) {
        [ctx.strokeStyle, ctx.lineWidth] = [colors.bg, 1.5 * area.ratio];
        ctx.stroke();
      }
    }
  }
  if (line === null) return;
  [ctx.globalAlpha, ctx.strokeStyle, ctx.lineWidth] = [1, colors.fg, 1.5 * area.ratio];
  ctx.beginPath();
  line.xs.forEach((x, index) => {
    const before = line.ys[index - 1];
    if (index > 0 && before !== null && before !== undefined) ctx.lineTo(area.toX(x), area.toY(before));
    ctx.lineTo(area.toX(x), area.toY(line.ys[index] ?? Number.NaN));
  });
  ctx.stroke();
};

/** Points on two axes. */
export const PointChart = memo(function PointChart({ label, x, y, points, line = null, under = null, height = 320, describe, onPick }: Props) {
  const colors = useChartColors();
  const [host, setHost] = useState<PlotHost | null>(null);
  const [at, setAt] = useState(-1);
  const shown = at < points.xs.length ? at : -1;
  const find = (place: { left: number; top: number } | null): number => {
    if (host === null || place === null) return -1;
    const area = host.area();
    return pointAt(points, area.toX, area.toY, place.left, place.top, REACH_PX);
  };
  const area = host?.area();
  const [left, top] = [area?.toX(points.xs[shown] ?? 0) ?? 0, area?.toY(points.ys[shown] ?? 0) ?? 0];
  return (
    <Box aria-label={label} cursor={shown >= 0 && onPick !== undefined ? "pointer" : undefined} data-chart-body="" data-points={points.xs.length} height={`${height}px`} position="relative" role="img">
      <PlotBox
        colors={colors}
        crosshair={false}
        height={height}
        onClick={(place) => {
          const index = find(place);
          if (index >= 0) onPick?.(index);
        }}
        onHost={setHost}
        onPointer={(place) => setAt(find(place))}
        paint={(ctx, painted) => {
          under?.(ctx, painted, colors);
          paint(ctx, painted, points, line, colors, under !== null);
        }}
        when={[points, line, under]}
        x={axisOf(x, 6)}
        y={axisOf(y, 6)}
      />
      {shown >= 0 && host !== null ? (
        <>
          <Box
            borderColor="fg"
            borderRadius="full"
            borderWidth={2}
            boxSize="12px"
            pointerEvents="none"
            position="absolute"
            style={{ left: host.over.offsetLeft + left - 6, top: host.over.offsetTop + top - 6 }}
          />
          <PointerNote left={host.over.offsetLeft + left} top={host.over.offsetTop + top - 20} width={host.over.offsetLeft + host.over.clientWidth}>
            {describe(shown)}
          </PointerNote>
        </>
      ) : null}
    </Box>
  );
});
