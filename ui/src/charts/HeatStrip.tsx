import { Box, HStack } from "@chakra-ui/react";
import { memo, useEffect, useMemo, useState } from "react";

import { duration } from "../format/times";
import { useTimezone } from "../hooks/useTimezone";
import { useChartGroup } from "./ChartContext";
import { type Hover } from "./hover";
import { lowerBound } from "./lines";
import { diverging } from "./palette";
import { PlotBox } from "./PlotBox";
import { type Area, type AxisSpec, type PlotHost } from "./plotHost";
import { PointerNote } from "./PointerNote";
import { valueText } from "./readingText";
import { scaleOf } from "./scales";
import { FULL_RATIO, heat, medians, rowHeight } from "./strip";
import { type ChartColors, useChartColors } from "./theme";
import { useZoom } from "./useZoom";

/** Step time of each rank over time, as the API sends it. */
export interface Strip {
  readonly at_s: readonly number[];
  /** Length of a cell in seconds. */
  readonly bucket_s: number;
  readonly ranks: readonly { readonly rank: number; readonly host: string; readonly slot: number | null }[];
  readonly mean_s: readonly (readonly (number | null)[])[];
  readonly slow_ranks: readonly { readonly rank: number; readonly host: string; readonly ratio: number }[];
}

interface Props {
  id: string;
  axis: string;
  strip: Strip;
  range: readonly [number, number] | null;
}

const AXES_PX = 34;

const paint = (ctx: CanvasRenderingContext2D, area: Area, strip: Strip, typical: readonly (number | null)[], colors: ChartColors): void => {
  const wide = strip.bucket_s;
  const slow = new Set(strip.slow_ranks.map(({ rank }) => rank));
  strip.mean_s.forEach((row, index) => {
    const [top, bottom] = [area.toY(-index), area.toY(-index - 1)];
    const gap = bottom - top > 6 * area.ratio ? area.ratio : 0;
    row.forEach((value, column) => {
      const place = heat(value, typical[column]);
      if (Number.isNaN(place)) return;
      const start = strip.at_s[column] ?? 0;
      const [left, right] = [area.toX(start), area.toX(start + wide)];
      ctx.fillStyle = diverging(place, colors.mode);
      ctx.fillRect(Math.floor(left), top, Math.max(1, Math.ceil(right) - Math.floor(left)), bottom - top - gap);
    });
    if (!slow.has(strip.ranks[index]?.rank ?? -1)) return;
    [ctx.strokeStyle, ctx.lineWidth] = [colors.failed, 2 * area.ratio];
    ctx.strokeRect(area.left + area.ratio, top, area.width - 2 * area.ratio, bottom - top - gap);
  });
};

/** Step time of each rank over time, relative to the median rank of the same time. Slow ranks have a frame. */
export const HeatStrip = memo(function HeatStrip({ id, axis, strip, range }: Props) {
  const colors = useChartColors();
  const zone = useTimezone();
  const { hover } = useChartGroup();
  const [zoomed, setZoom] = useZoom(axis);
  const [host, setHost] = useState<PlotHost | null>(null);
  const [cell, setCell] = useState<{ row: number; column: number; left: number; top: number } | null>(null);
  const typical = useMemo(() => medians(strip.mean_s, strip.at_s.length), [strip]);
  const rows = strip.ranks.length;
  const height = rows * rowHeight(rows) + AXES_PX;
  const whole: readonly [number, number] | null = range ?? (strip.at_s.length > 0 ? [strip.at_s[0] ?? 0, (strip.at_s[strip.at_s.length - 1] ?? 0) + strip.bucket_s] : null);
  const x: AxisSpec = { scale: scaleOf(zoomed ?? whole), kind: "clock", zone };
  const y: AxisSpec = {
    scale: { min: -Math.max(1, rows), max: 0, log: false },
    kind: "number",
    zone,
    labels: strip.ranks.map(({ rank }, index) => ({ value: -index - 0.5, text: `rank ${rank}` })),
  };
  useEffect(
    () =>
      hover.subscribe((value: Hover | null) => {
        if (value?.chart !== id) host?.point(value?.axis === axis ? value.x : null);
      }),
    [hover, host, id, axis],
  );
  const onPointer = (place: { left: number; top: number } | null) => {
    if (host === null || place === null) {
      setCell(null);
      hover.leave(id);
      return;
    }
    const at = host.xAt(place.left);
    hover.set({ axis, x: at, chart: id, series: null });
    const row = Math.floor((place.top / Math.max(1, host.over.clientHeight)) * rows);
    const next = lowerBound(strip.at_s, at);
    const column = strip.at_s[next] === at ? next : next - 1;
    setCell({ row, column, ...place });
  };
  const place = cell === null ? undefined : strip.ranks[cell.row];
  const value = cell === null ? null : strip.mean_s[cell.row]?.[cell.column];
  const middle = cell === null ? null : typical[cell.column];
  return (
    <Box>
      <Box
        aria-label={`Step time of ${rows} ranks over time. Slow ranks: ${strip.slow_ranks.length === 0 ? "none" : strip.slow_ranks.map(({ rank }) => rank).join(", ")}.`}
        data-picture=""
        height={`${height}px`}
        position="relative"
        role="img"
      >
        <PlotBox colors={colors} height={height} onHost={setHost} onPointer={onPointer} onZoom={setZoom} paint={(ctx, area) => paint(ctx, area, strip, typical, colors)} when={[strip]} x={x} y={y} />
        {place === undefined || host === null || cell === null ? null : (
          <PointerNote left={host.over.offsetLeft + cell.left} top={host.over.offsetTop + cell.top - 10} width={host.over.offsetLeft + host.over.clientWidth}>
            <Box fontWeight="bold">
              Rank {place.rank} on {place.host}
              {place.slot === null ? "" : `, slot ${place.slot}`}
            </Box>
            <Box>{value === null || value === undefined ? "No data" : `${duration(value)} per step`}</Box>
            {value && middle ? <Box>{(value / middle).toFixed(2)} times the median rank</Box> : null}
            <Box color="fg.muted">{valueText(strip.at_s[cell.column] ?? 0, "clock", zone)}</Box>
          </PointerNote>
        )}
      </Box>
      <HStack color="fg.muted" fontSize="xs" gap={2} mt={1}>
        <Box>faster</Box>
        <HStack aria-hidden="true" gap={0}>
          {[-1, -0.5, 0, 0.5, 1].map((step) => (
            <Box height="10px" key={step} style={{ background: diverging(step, colors.mode) }} width="22px" />
          ))}
        </HStack>
        <Box>slower than the median rank ({FULL_RATIO} times or more at the end of the scale)</Box>
      </HStack>
    </Box>
  );
});
