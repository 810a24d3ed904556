import { Box } from "@chakra-ui/react";
import { type KeyboardEvent, memo, useEffect, useMemo, useRef, useState } from "react";

import { useTimezone } from "../hooks/useTimezone";
import { type AxisKind } from "./axisText";
import { useChartGroup } from "./ChartContext";
import { type Curve, joinedRange, paintCurve, rangeOfX, readings, scaleOfY } from "./curves";
import { ChartLegend } from "./ChartLegend";
import { HoverLayer } from "./HoverLayer";
import { stepped } from "./keyboard";
import { PlotBox } from "./PlotBox";
import { type Area, type AxisSpec, type PlotHost } from "./plotHost";
import { valueText } from "./readingText";
import { scaleOf } from "./scales";
import { useChartColors } from "./theme";
import { useZoom } from "./useZoom";

export interface LineChartProps {
  /** Name of the chart within the page. */
  id: string;
  /** Label for screen readers. */
  label: string;
  /** Name below the x axis. */
  xName?: string;
  /** Charts with the same axis share pointer and zoom. */
  axis: string;
  curves: readonly Curve[];
  xKind?: AxisKind;
  yKind?: AxisKind;
  xLog?: boolean;
  yLog?: boolean;
  /** Leave the most extreme values outside of the y axis. */
  robust?: boolean;
  fromZero?: boolean;
  /** Name the curves above the chart, with their values. */
  legend?: boolean;
  height?: number;
  /** Range of x that is shown at least; null: that of the data. */
  range?: readonly [number, number] | null;
  /** Curve that a list beside the chart points at. */
  focus?: string | null;
  /** The user clicked on a curve. */
  onPick?: (id: string) => void;
}

/** Distance from the pointer at which a curve counts as clicked, in pixels. */
const PICK_PX = 12;

const paintAll = (ctx: CanvasRenderingContext2D, area: Area, curves: readonly Curve[], focus: string | null, mode: "dark" | "light"): void => {
  const thin = curves.length > 12 ? 1.25 : 1.75;
  const inOrder = [...curves].sort((a, b) => Number(a.strong ?? false) - Number(b.strong ?? false) || Number(a.id === focus) - Number(b.id === focus));
  for (const curve of inOrder) {
    const faded = focus !== null && curve.id !== focus;
    paintCurve(ctx, curve, area, mode, faded ? 0.2 : 1, curve.strong || curve.id === focus ? 3 : thin);
  }
};

/** Curves on common axes. Drag zooms into a range of x, a double click shows everything again. */
export const LineChart = memo(function LineChart(props: LineChartProps) {
  const { id, label, axis, curves, xKind = "number", yKind = "number", xLog = false, yLog = false } = props;
  const { robust = false, fromZero = false, legend = false, height = 260, range = null, focus = null, onPick, xName = "" } = props;
  const colors = useChartColors();
  const zone = useTimezone();
  const { hover } = useChartGroup();
  const [zoomed, setZoom] = useZoom(axis);
  const [spoken, setSpoken] = useState("");
  const [host, setHost] = useState<PlotHost | null>(null);
  const top = useRef<number | null>(null);
  useEffect(() => () => hover.leave(id), [hover, id]);

  const [x, y] = useMemo((): [AxisSpec, AxisSpec] => {
    const shown = zoomed ?? joinedRange(range, rangeOfX(curves, xLog));
    return [
      { scale: scaleOf(shown, xLog), kind: xKind, zone, name: xName },
      { scale: scaleOfY(curves, zoomed, { log: yLog, robust, fromZero }), kind: yKind, zone },
    ];
  }, [curves, range, zoomed, xLog, yLog, xKind, yKind, zone, robust, fromZero, xName]);

  const onPointer = (place: { left: number; top: number } | null) => {
    top.current = place?.top ?? null;
    if (host === null || place === null) {
      hover.leave(id);
      return;
    }
    const at = host.xAt(place.left);
    const [first] = readings(curves, at, place.top, host.area());
    hover.set({ axis, x: at, chart: id, series: first?.curve.id ?? null });
  };
  const onClick = (place: { left: number; top: number }) => {
    if (host === null || onPick === undefined) return;
    const [first] = readings(curves, host.xAt(place.left), place.top, host.area());
    if (first !== undefined && first.distance <= PICK_PX) onPick(first.curve.id);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const now = hover.value?.axis === axis ? hover.value : null;
    const step = stepped(event.key, curves, now, [x.scale.min, x.scale.max]);
    if (step === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (step.kind === "zoom") {
      setZoom(step.range);
      return;
    }
    top.current = null;
    hover.set({ axis, x: step.x, chart: id, series: step.curve.id });
    setSpoken(`${step.curve.name}: ${valueText(step.y, yKind, zone)} at ${valueText(step.x, xKind, zone)}`);
  };

  const chart = (
    <Box
      aria-label={`${label}. Arrow keys read the values, plus and minus zoom, 0 shows everything.`}
      data-chart-body=""
      data-curves={curves.length}
      data-points={curves.reduce((sum, { points }) => sum + points.xs.length, 0)}
      height={`${height}px`}
      minW={0}
      onBlur={() => hover.leave(id)}
      onKeyDown={onKeyDown}
      position="relative"
      role="group"
      tabIndex={0}
    >
      <PlotBox
        colors={colors}
        height={height}
        onClick={onClick}
        onHost={setHost}
        onPointer={onPointer}
        onZoom={setZoom}
        paint={(ctx, area) => paintAll(ctx, area, curves, focus, colors.mode)}
        when={[curves, focus]}
        x={x}
        y={y}
      />
      {host === null ? null : (
        <HoverLayer axis={axis} chart={id} colors={colors} curves={curves} host={host} named={legend} top={top} xKind={xKind} yKind={yKind} zone={zone} />
      )}
      <Box aria-live="polite" srOnly>
        {spoken}
      </Box>
    </Box>
  );
  return legend ? (
    <>
      <ChartLegend axis={axis} curves={curves} host={host} xKind={xKind} yKind={yKind} zone={zone} />
      {chart}
    </>
  ) : (
    chart
  );
});
