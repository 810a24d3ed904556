import { Box, chakra } from "@chakra-ui/react";
import { useCallback, useEffect, useRef } from "react";

import { type AxisKind } from "./axisText";
import { colorOf, type Curve, paintCurve, paintDot, type Reading, readings } from "./curves";
import { type Hover } from "./hover";
import { type PlotHost } from "./plotHost";
import { NoteBelow, PointerNote } from "./PointerNote";
import { valueText, valueTexts } from "./readingText";
import { Swatch } from "./Swatch";
import { type ChartColors } from "./theme";
import { useHover } from "./useHover";

/** Curves named beside the pointer. */
const NAMED = 8;

interface Props {
  host: PlotHost;
  chart: string;
  axis: string;
  curves: readonly Curve[];
  xKind: AxisKind;
  yKind: AxisKind;
  zone: string;
  colors: ChartColors;
  /** Height of the pointer within the chart, in pixels; null: it is in another chart. */
  top: { current: number | null };
  /** The legend has the values. */
  named: boolean;
}

interface State {
  hover: Hover;
  found: Reading[];
}

const paint = (canvas: HTMLCanvasElement, { host, colors, curves }: Props, state: State | null): void => {
  const { over } = host;
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [over.clientWidth, over.clientHeight];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  }
  [canvas.style.left, canvas.style.top] = [`${over.offsetLeft}px`, `${over.offsetTop}px`];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const ctx = canvas.getContext("2d");
  if (ctx === null) return;
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.clearRect(0, 0, canvas.width, canvas.height);
  if (state === null) return;
  const area = host.area();
  ctx.scale(ratio, ratio);
  const strong = curves.find(({ id }) => id === state.hover.series);
  if (strong !== undefined && !strong.filled && curves.length > 1) {
    // A halo in the colour of the page separates the line from those below it.
    ctx.save();
    [ctx.strokeStyle, ctx.globalAlpha] = [colors.bg, 0.8];
    ctx.restore();
    paintCurve(ctx, { ...strong, raw: null, band: null }, area, colors.mode, 1, 3.5);
  }
  for (const reading of state.found.slice(0, NAMED)) {
    ctx.fillStyle = colorOf(reading.curve.look, colors.mode);
    paintDot(ctx, reading.curve, reading.index, area, reading.curve.id === state.hover.series ? 4.5 : 3);
  }
};

/** Marks the values at the pointer. Only the chart under the pointer names them, outside of the area. */
export const HoverLayer = (props: Props) => {
  const { host, chart, axis, curves, xKind, yKind, zone, top, named } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const point = useCallback((place: Hover | null) => (place?.chart === chart ? undefined : host.point(place?.x ?? null)), [host, chart]);
  const hover = useHover(axis, point);
  const own = hover?.chart === chart;
  const all = hover === null ? [] : readings(curves, hover.x, own ? top.current : null, host.area());
  // In other charts the series under the pointer is shown alone if they have it.
  const same = own ? [] : all.filter(({ curve }) => curve.id === hover?.series);
  const found = same.length > 0 ? same : all;
  const state = hover === null ? null : { hover, found };
  useEffect(() => {
    if (canvas.current !== null) paint(canvas.current, props, state);
  });
  const left = hover === null ? 0 : host.area().toX(hover.x);
  const inside = hover !== null && left >= 0 && left <= host.over.clientWidth && found.length > 0;
  const shown = found.slice(0, NAMED);
  const texts = valueTexts(shown.map(({ y }) => y), yKind, zone);
  const [one] = same;
  const note = { left: host.over.offsetLeft + left, width: host.over.offsetLeft + host.over.clientWidth };
  return (
    <>
      <chakra.canvas aria-hidden="true" pointerEvents="none" position="absolute" ref={canvas} />
      {inside && !named && !own && one !== undefined ? (
        // A chart that is not under the pointer reads one series, within its own area: a list would cover the next chart.
        <PointerNote {...note} top={host.over.offsetTop}>
          <Box alignItems="center" display="flex" gap={2}>
            <Swatch look={one.curve.look} />
            <Box fontVariantNumeric="tabular-nums">{valueTexts([one.y], yKind, zone)[0]}</Box>
          </Box>
        </PointerNote>
      ) : null}
      {inside && !named && own ? (
        <NoteBelow {...note}>
          <Box color="fg.muted">{valueText(found[0]?.x ?? hover.x, xKind, zone)}</Box>
          {shown.map(({ curve }, index) => (
            <Box alignItems="center" display="flex" fontWeight={curve.id === hover.series ? "bold" : "normal"} gap={2} key={curve.id}>
              <Swatch look={curve.look} />
              <Box flex="1" overflow="hidden" textOverflow="ellipsis" whiteSpace="nowrap">
                {curve.name}
              </Box>
              <Box fontVariantNumeric="tabular-nums">{texts[index]}</Box>
            </Box>
          ))}
          {found.length > NAMED ? <Box color="fg.muted">and {found.length - NAMED} more</Box> : null}
        </NoteBelow>
      ) : null}
    </>
  );
};
