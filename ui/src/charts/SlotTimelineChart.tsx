import { Box, HStack } from "@chakra-ui/react";
import { type KeyboardEvent, memo, type ReactNode, useMemo, useState } from "react";

import { useTimezone } from "../hooks/useTimezone";
import { barByKey } from "./barKeys";
import { type Fill, FILLS } from "./palette";
import { PlotBox } from "./PlotBox";
import { type Area, type AxisSpec, type PlotHost } from "./plotHost";
import { PointerNote } from "./PointerNote";
import { scaleOf } from "./scales";
import { type Band, bandsOf, type Bar, barAt, rangeOfBars, type SlotRows, type SlotSpan } from "./slotTimeline";
import { type ChartColors, useChartColors } from "./theme";
import { useZoom } from "./useZoom";

const ROW_PX = 20;
const AXES_PX = 34;
const LEAST_PX = 120;
const MOST_PX = 2_400;
const REACH_PX = 3;
/** Width of a bar that stands for a moment. */
const MOMENT_PX = 4;
/** Least height of a bar with a text. */
const TEXT_PX = 14;

/** Look of the bars of one timeline. */
export interface BarLooks<S> {
  readonly fillOf: (span: S) => Fill;
  /** Text on a bar that has room for it. */
  readonly textOf: (span: S) => string;
  /** Whether it stands for a moment. */
  readonly isMoment: (span: S) => boolean;
  readonly legend: readonly { readonly fill: Fill; readonly text: string }[];
}

/** Colours of the bars by state of the trial, in the order of the legend. */
const BAR_FILLS: readonly { fill: Fill; states: readonly string[]; text: string }[] = [
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

/** Look of attempts: the colour is the state of the trial, the text its id. */
export const ATTEMPT_LOOKS: BarLooks<SlotSpan> = { fillOf, textOf: ({ trial_id }) => String(trial_id), isMoment: () => false, legend: BAR_FILLS };

interface Props<S> {
  label: string;
  rows: SlotRows<S>;
  looks: BarLooks<S>;
  /** Facts about a bar, for pointer and keyboard. */
  describe: (span: S) => ReactNode;
  onPick: (span: S) => void;
  /** Height of a row in pixels. */
  rowPx?: number;
  /** Times of the axis in seconds since 1970; without it, those of the bars. */
  range?: readonly [number, number] | null;
}

const paint = <S,>(ctx: CanvasRenderingContext2D, area: Area, bands: readonly Band[], { bars, isByHost }: SlotRows<S>, { fillOf: fill, textOf, isMoment }: BarLooks<S>, colors: ChartColors): void => {
  const tall = area.toY(-1) - area.toY(0);
  ctx.fillStyle = colors.grid;
  bands.forEach(({ row, rows }, index) => {
    if (index % 2 === 1) ctx.fillRect(area.left, area.toY(-row), area.width, tall * rows);
  });
  ctx.font = `${11 * area.ratio}px ${colors.font}`;
  [ctx.textBaseline, ctx.textAlign] = ["middle", "left"];
  for (const { span, row, rows, fromS, startS, toS } of bars) {
    const [left, start, right] = [area.toX(fromS), area.toX(startS), area.toX(toS)];
    if (right < area.left || left > area.left + area.width) continue;
    const least = (isMoment(span) ? MOMENT_PX : 1) * area.ratio;
    const edge = tall * Math.min(1, rows) * 0.12;
    const [top, height] = [area.toY(-row) + edge, tall * rows - 2 * edge];
    // Trials of one host overlap where a row is a host.
    ctx.globalAlpha = isByHost ? 0.6 : 1;
    ctx.fillStyle = FILLS[colors.mode][fill(span)];
    ctx.fillRect(start, top, Math.max(least, right - start), height);
    ctx.globalAlpha = 1;
    // Frames of bars that are as thin as their lines would hide the colours.
    if (height > 3 * area.ratio) {
      [ctx.strokeStyle, ctx.lineWidth] = [colors.muted, area.ratio];
      ctx.strokeRect(left, top, Math.max(least, right - left), height);
    }
    const text = textOf(span);
    if (text === "" || height < TEXT_PX * area.ratio) continue;
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

const ChartOf = <S,>({ label, rows, looks, describe, onPick, rowPx = ROW_PX, range = null }: Props<S>) => {
  const colors = useChartColors();
  const zone = useTimezone();
  const [zoomed, setZoom] = useZoom("clock");
  const [host, setHost] = useState<PlotHost | null>(null);
  const [at, setAt] = useState<{ bar: Bar<S>; left: number; top: number } | null>(null);
  const whole = useMemo(() => range ?? rangeOfBars(rows.bars), [rows, range]);
  const bands = useMemo(() => bandsOf(rows), [rows]);
  const last = bands.at(-1);
  const number = Math.max(1, last === undefined ? 0 : last.row + last.rows);
  const height = Math.min(MOST_PX, Math.max(LEAST_PX, number * rowPx + AXES_PX));
  const x = useMemo<AxisSpec>(() => ({ scale: scaleOf(zoomed ?? whole, false, zoomed === null && range === null ? 0.01 : 0), kind: "clock", zone }), [zoomed, whole, range, zone]);
  const y = useMemo<AxisSpec>(
    () => ({ scale: { min: -number, max: 0, log: false }, kind: "number", zone, labels: bands.map(({ text, row, rows: size }) => ({ value: -row - size / 2, text })) }),
    [bands, number, zone],
  );
  const find = (place: { left: number; top: number } | null): Bar<S> | null => {
    if (host === null || place === null) return null;
    const area = host.area();
    const row = ((place.top - area.top) / Math.max(1, area.height)) * number;
    return barAt(rows.bars, row, host.xAt(place.left), Math.abs(host.xAt(REACH_PX) - host.xAt(0)));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (host === null || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && at !== null) {
      onPick(at.bar.span);
      return;
    }
    if (event.key === "Escape") {
      setAt(null);
      return;
    }
    const bar = barByKey(event.key, rows.bars, at?.bar ?? null);
    if (bar === null) return;
    event.preventDefault();
    const area = host.area();
    const left = (area.toX(Math.max(bar.fromS, x.scale.min)) + area.toX(Math.min(bar.toS, x.scale.max))) / 2;
    setAt({ bar, left: Math.min(Math.max(left, area.left), area.left + area.width), top: area.toY(-bar.row - bar.rows) });
  };
  return (
    <Box data-picture="html">
      <Box
        aria-label={`${label} Arrow keys go from bar to bar, Enter opens one.`}
        cursor={at === null ? undefined : "pointer"}
        data-bars={rows.bars.length}
        height={`${height}px`}
        onBlur={() => setAt(null)}
        onKeyDown={onKeyDown}
        position="relative"
        role="group"
        tabIndex={0}
      >
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
          paint={(ctx, area) => paint(ctx, area, bands, rows, looks, colors)}
          when={[rows, looks]}
          x={x}
          y={y}
        />
        <Box aria-live="polite">
          {at === null || host === null ? null : (
            <PointerNote left={host.over.offsetLeft + at.left} top={host.over.offsetTop + at.top + 8} width={host.over.offsetLeft + host.over.clientWidth}>
              {describe(at.bar.span)}
            </PointerNote>
          )}
        </Box>
      </Box>
      <HStack as="ul" color="fg.muted" columnGap={4} fontSize="xs" listStyleType="none" mt={1} rowGap={0} wrap="wrap">
        {looks.legend.map(({ fill, text }) => (
          <HStack as="li" gap={1} key={fill}>
            <Box borderColor="fg.muted" borderWidth={1} boxSize="12px" style={{ background: FILLS[colors.mode][fill] }} /> {text}
          </HStack>
        ))}
      </HStack>
    </Box>
  );
};

/** Work on slots: a bar from the grant of slots to their release, filled from the start of the ranks on. */
export const SlotTimelineChart = memo(ChartOf) as typeof ChartOf;
