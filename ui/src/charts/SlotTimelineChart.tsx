import { Box, HStack } from "@chakra-ui/react";
import { memo, type ReactNode, useMemo, useState } from "react";

import { useTimezone } from "../hooks/useTimezone";
import { type Fill, FILLS } from "./palette";
import { PlotBox } from "./PlotBox";
import { type Area, type AxisSpec, type PlotHost } from "./plotHost";
import { PointerNote } from "./PointerNote";
import { scaleOf } from "./scales";
import { type Bar, barAt, rangeOfBars, type SlotRows, type SlotSpan } from "./slotTimeline";
import { type ChartColors, useChartColors } from "./theme";
import { useZoom } from "./useZoom";

const ROW_PX = 20;
const AXES_PX = 34;
const LEAST_PX = 120;
const MOST_PX = 2_400;
const REACH_PX = 3;

/** Colours of the bars by state of the trial, in the order of the legend. */
export const BAR_FILLS: readonly { fill: Fill; states: readonly string[]; text: string }[] = [
  { fill: "running", states: ["running"], text: "running" },
  { fill: "done", states: ["completed"], text: "completed" },
  { fill: "waiting", states: ["stopped"], text: "stopped by the searcher or a user" },
  { fill: "failed", states: ["errored"], text: "errored" },
  { fill: "foreign", states: ["killed"], text: "killed" },
  { fill: "starting", states: ["queued", "paused"], text: "gave its slots back and continues later" },
];

const fillOf = ({ state, ended_at }: SlotSpan): Fill => {
  // An earlier attempt of a trial that continues gave its slots back.
  if (state === "running" && ended_at !== null) return "starting";
  return BAR_FILLS.find(({ states }) => states.includes(state))?.fill ?? "starting";
};

interface Props<S extends SlotSpan> {
  label: string;
  rows: SlotRows<S>;
  describe: (span: S) => ReactNode;
  onPick: (span: S) => void;
}

const paint = (ctx: CanvasRenderingContext2D, area: Area, { labels, bars, isByHost }: SlotRows<SlotSpan>, colors: ChartColors): void => {
  const tall = area.toY(-1) - area.toY(0);
  ctx.fillStyle = colors.grid;
  for (let row = 1; row < labels.length; row += 2) ctx.fillRect(area.left, area.toY(-row), area.width, tall);
  ctx.font = `${11 * area.ratio}px ${colors.font}`;
  [ctx.textBaseline, ctx.textAlign] = ["middle", "left"];
  for (const { span, row, rows, fromS, startS, toS } of bars) {
    const [left, start, right] = [area.toX(fromS), area.toX(startS), area.toX(toS)];
    if (right < area.left || left > area.left + area.width) continue;
    const [top, height] = [area.toY(-row) + tall * 0.12, tall * (rows - 0.24)];
    // Trials of one host overlap where a row is a host.
    ctx.globalAlpha = isByHost ? 0.6 : 1;
    ctx.fillStyle = FILLS[colors.mode][fillOf(span)];
    ctx.fillRect(start, top, Math.max(area.ratio, right - start), height);
    ctx.globalAlpha = 1;
    [ctx.strokeStyle, ctx.lineWidth] = [colors.muted, area.ratio];
    ctx.strokeRect(left, top, Math.max(area.ratio, right - left), height);
    const text = String(span.trial_id);
    const from = Math.max(start, area.left);
    if (isByHost || right - from < ctx.measureText(text).width + 8 * area.ratio) continue;
    // A plate in the colour of the page makes the number readable on each colour.
    const width = ctx.measureText(text).width + 4 * area.ratio;
    ctx.fillStyle = colors.bg;
    ctx.fillRect(from + 2 * area.ratio, top + height / 2 - 7 * area.ratio, width, 14 * area.ratio);
    ctx.fillStyle = colors.fg;
    ctx.fillText(text, from + 4 * area.ratio, top + height / 2);
  }
};

const ChartOf = <S extends SlotSpan>({ label, rows, describe, onPick }: Props<S>) => {
  const colors = useChartColors();
  const zone = useTimezone();
  const [zoomed, setZoom] = useZoom("clock");
  const [host, setHost] = useState<PlotHost | null>(null);
  const [at, setAt] = useState<{ bar: Bar<S>; left: number; top: number } | null>(null);
  const whole = useMemo(() => rangeOfBars(rows.bars), [rows]);
  const number = Math.max(1, rows.labels.length);
  const height = Math.min(MOST_PX, Math.max(LEAST_PX, number * ROW_PX + AXES_PX));
  const x = useMemo<AxisSpec>(() => ({ scale: scaleOf(zoomed ?? whole, false, zoomed === null ? 0.01 : 0), kind: "clock", zone }), [zoomed, whole, zone]);
  const y = useMemo<AxisSpec>(
    () => ({ scale: { min: -number, max: 0, log: false }, kind: "number", zone, labels: rows.labels.map((text, row) => ({ value: -row - 0.5, text })) }),
    [rows, number, zone],
  );
  const find = (place: { left: number; top: number } | null): Bar<S> | null => {
    if (host === null || place === null) return null;
    const area = host.area();
    const row = Math.floor(((place.top - area.top) / Math.max(1, area.height)) * number);
    return barAt(rows.bars, row, host.xAt(place.left), Math.abs(host.xAt(REACH_PX) - host.xAt(0)));
  };
  return (
    <Box data-picture="html">
      <Box aria-label={label} cursor={at === null ? undefined : "pointer"} data-bars={rows.bars.length} height={`${height}px`} position="relative" role="img">
        <PlotBox
          colors={colors}
          height={height}
          onClick={(place) => {
            const bar = find(place);
            if (bar !== null) onPick(bar.span);
          }}
          onHost={setHost}
          onPointer={(place) => {
            const bar = find(place);
            setAt(bar === null || place === null ? null : { bar, ...place });
          }}
          onZoom={setZoom}
          paint={(ctx, area) => paint(ctx, area, rows, colors)}
          when={[rows]}
          x={x}
          y={y}
        />
        {at === null || host === null ? null : (
          <PointerNote left={host.over.offsetLeft + at.left} top={host.over.offsetTop + at.top + 8} width={host.over.offsetLeft + host.over.clientWidth}>
            {describe(at.bar.span)}
          </PointerNote>
        )}
      </Box>
      <HStack as="ul" color="fg.muted" columnGap={4} fontSize="xs" listStyleType="none" mt={1} rowGap={0} wrap="wrap">
        {BAR_FILLS.map(({ fill, text }) => (
          <HStack as="li" gap={1} key={fill}>
            <Box borderColor="fg.muted" borderWidth={1} boxSize="12px" style={{ background: FILLS[colors.mode][fill] }} /> {text}
          </HStack>
        ))}
      </HStack>
    </Box>
  );
};

/** Trials of an experiment on their slots, a row per slot. The number on a bar is the id of the trial. */
export const SlotTimelineChart = memo(ChartOf) as typeof ChartOf;
