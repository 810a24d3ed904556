import { Box, HStack } from "@chakra-ui/react";
import { memo, useEffect, useMemo, useState } from "react";

import { duration } from "../format/times";
import { useTimezone } from "../hooks/useTimezone";
import { useChartGroup } from "./ChartContext";
import { PlotBox } from "./PlotBox";
import { type Area, type AxisSpec, type PlotHost } from "./plotHost";
import { PointerNote } from "./PointerNote";
import { valueText } from "./readingText";
import { scaleOf } from "./scales";
import { type ChartColors, useChartColors } from "./theme";
import { type Entry, type Placed, rangeOf, type Row, rowsOf } from "./timelineLayout";
import { kindLook, KIND_LEGEND, type MarkShape } from "./timelineLooks";
import { useZoom } from "./useZoom";

interface Props {
  id: string;
  axis: string;
  entries: readonly Entry[];
  /** Whether the trial still lives. */
  active: boolean;
  nowS: number;
  range: readonly [number, number] | null;
}

const LEVEL_PX = 18;
const AXES_PX = 34;
const MOST_LEVELS = 6;
const REACH_PX = 9;

interface Line extends Row {
  /** Levels above this row. */
  start: number;
}

const stackedRows = (rows: readonly Row[]): Line[] => {
  let start = 0;
  return rows.map((row) => {
    const line = { ...row, levels: Math.min(MOST_LEVELS, row.levels), start };
    start += line.levels;
    return line;
  });
};

const levelOf = (line: Line, { level }: Placed): number => line.start + Math.min(line.levels - 1, level);

const mark = (ctx: CanvasRenderingContext2D, shape: MarkShape, x: number, y: number, size: number): void => {
  ctx.beginPath();
  if (shape === "circle") ctx.arc(x, y, size * 0.8, 0, 2 * Math.PI);
  else if (shape === "square") ctx.rect(x - size * 0.75, y - size * 0.75, size * 1.5, size * 1.5);
  else {
    const points = shape === "diamond" ? [[0, -1], [1, 0], [0, 1], [-1, 0]] : [[0, -1], [0.95, 0.75], [-0.95, 0.75]];
    points.forEach(([dx, dy]) => ctx.lineTo(x + (dx ?? 0) * size, y + (dy ?? 0) * size));
    ctx.closePath();
  }
  ctx.fill();
};

const paint = (ctx: CanvasRenderingContext2D, area: Area, lines: readonly Line[], colors: ChartColors): void => {
  const tall = area.toY(-1) - area.toY(0);
  lines.forEach((line, index) => {
    if (index % 2 === 1) {
      ctx.fillStyle = colors.grid;
      ctx.fillRect(area.left, area.toY(-line.start), area.width, tall * line.levels);
    }
    for (const lasting of [true, false]) {
      for (const item of line.entries) {
        if ((item.toS !== null) !== lasting) continue;
        const look = kindLook(item.entry.kind);
        const y = area.toY(-levelOf(line, item) - 0.5);
        ctx.fillStyle = colors.kinds[look.color];
        const x = area.toX(item.fromS);
        if (item.toS === null) mark(ctx, look.shape, x, y, 5.5 * area.ratio);
        else ctx.fillRect(x, y - tall * 0.36, Math.max(2 * area.ratio, area.toX(item.toS) - x), tall * 0.72);
      }
    }
  });
};

const found = (lines: readonly Line[], area: Area, left: number, top: number): Placed | null => {
  let best: Placed | null = null;
  let least = REACH_PX;
  for (const line of lines) {
    for (const item of line.entries) {
      if (Math.abs(area.toY(-levelOf(line, item) - 0.5) - top) > LEVEL_PX / 2) continue;
      const from = area.toX(item.fromS);
      const to = item.toS === null ? from : area.toX(item.toS);
      // A moment within a span is on top of it.
      const distance = left < from ? from - left : left > to ? left - to : item.toS === null ? 0 : 0.5;
      if (distance < least) [best, least] = [item, distance];
    }
  }
  return best;
};

/** What happened to a trial, one row per attempt and host. */
export const TimelineChart = memo(function TimelineChart({ id, axis, entries, active, nowS, range }: Props) {
  const colors = useChartColors();
  const zone = useTimezone();
  const { hover } = useChartGroup();
  const [zoomed, setZoom] = useZoom(axis);
  const [host, setHost] = useState<PlotHost | null>(null);
  const [at, setAt] = useState<{ item: Placed; left: number; top: number } | null>(null);
  const whole = useMemo(() => range ?? rangeOf(rowsOf(entries, nowS, active)), [range, entries, nowS, active]);
  const lines = useMemo(() => {
    const span = whole === null ? 0 : whole[1] - whole[0];
    return stackedRows(rowsOf(entries, nowS, active, span * 0.012));
  }, [entries, nowS, active, whole]);
  const levels = lines.reduce((sum, line) => sum + line.levels, 0);
  const height = Math.max(2, levels) * LEVEL_PX + AXES_PX;
  const x = useMemo<AxisSpec>(() => ({ scale: scaleOf(zoomed ?? whole, false, zoomed === null ? 0.01 : 0), kind: "clock", zone }), [zoomed, whole, zone]);
  const y = useMemo<AxisSpec>(
    () => ({
      scale: { min: -Math.max(2, levels), max: 0, log: false },
      kind: "number",
      zone,
      labels: lines.map((line) => ({ value: -line.start - line.levels / 2, text: line.label })),
    }),
    [lines, levels, zone],
  );
  useEffect(
    () =>
      hover.subscribe((value) => {
        if (value?.chart !== id) host?.point(value?.axis === axis ? value.x : null);
      }),
    [hover, host, id, axis],
  );
  const onPointer = (place: { left: number; top: number } | null) => {
    if (host === null || place === null) {
      setAt(null);
      hover.leave(id);
      return;
    }
    hover.set({ axis, x: host.xAt(place.left), chart: id, series: null });
    const item = found(lines, host.area(), place.left, place.top);
    setAt(item === null ? null : { item, ...place });
  };
  return (
    <Box data-picture="html">
      <Box aria-label={`Timeline with ${entries.length} entries. The list below has the same entries.`} height={`${height}px`} position="relative" role="img">
        <PlotBox colors={colors} height={height} onHost={setHost} onPointer={onPointer} onZoom={setZoom} paint={(ctx, area) => paint(ctx, area, lines, colors)} when={[lines]} x={x} y={y} />
        {at === null || host === null ? null : (
          <PointerNote left={host.over.offsetLeft + at.left} top={host.over.offsetTop + at.top + 8} width={host.over.offsetLeft + host.over.clientWidth}>
            <Box fontWeight="bold">{at.item.entry.text}</Box>
            <Box color="fg.muted">
              {valueText(at.item.fromS, "clock", zone)}
              {at.item.toS === null ? "" : `, for ${duration(at.item.toS - at.item.fromS)}`}
            </Box>
          </PointerNote>
        )}
      </Box>
      <HStack color="fg.muted" columnGap={4} fontSize="xs" mt={1} rowGap={0} wrap="wrap">
        {KIND_LEGEND.map(({ color, text }) => (
          <HStack gap={1} key={color}>
            <Box boxSize="10px" style={{ background: colors.kinds[color] }} /> {text}
          </HStack>
        ))}
      </HStack>
    </Box>
  );
});
