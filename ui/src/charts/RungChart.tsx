import { Box } from "@chakra-ui/react";
import { memo, useMemo, useState } from "react";

import { type Numeric, number } from "../format/numbers";
import { colorOf } from "./curves";
import { PlotBox } from "./PlotBox";
import { type Area, type AxisSpec, type PlotHost } from "./plotHost";
import { PointerNote } from "./PointerNote";
import { bestFirst, type Fate, fateOf, leftIsBetter, levels, metricScale, type Report, rivals } from "./rungLayout";
import { RungNote } from "./RungNote";
import { type ChartColors, useChartColors } from "./theme";

/** One rung, as the API sends it. */
export interface RungData {
  readonly rung: number;
  readonly units: number;
  readonly cut_off: Numeric;
  readonly entries: readonly Report[];
}

interface Props {
  bracket: number;
  rungs: readonly RungData[];
  metric: string;
  unit: string;
  smallerIsBetter: boolean;
  /** Place reports by their order or by their value. */
  by: "order" | "value";
  onPick: (trialId: number) => void;
}

/** A report with its place within the chart. */
interface Dot {
  readonly report: Report;
  readonly fate: Fate;
  readonly x: number;
  readonly y: number;
}

interface Line {
  readonly rung: RungData;
  readonly dots: readonly Dot[];
  readonly cutOff: number | null;
}

const ROW_PX = 74;
const AXES_PX = 36;
const LEVELS = 7;
const REACH_PX = 8;

/** Width of one mark as a share of the chart. */
const MARK = 0.011;

const finite = (value: Numeric): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);

const byOrder = (rung: RungData, smallerIsBetter: boolean): { xs: number[]; sorted: Report[]; cutOff: number | null } => {
  const sorted = bestFirst(rung.entries, smallerIsBetter);
  const step = 1 / Math.max(12, sorted.length);
  const cut = finite(rung.cut_off);
  const passed = sorted.filter(({ metric }) => {
    const value = finite(metric);
    return value !== null && cut !== null && (smallerIsBetter ? value <= cut : value >= cut);
  }).length;
  return { sorted, xs: sorted.map((_, index) => (index + 0.5) * step), cutOff: cut === null ? null : passed * step };
};

const linesOf = (rungs: readonly RungData[], smallerIsBetter: boolean, by: "order" | "value"): Line[] => {
  const scale = metricScale(rungs.flatMap(({ entries }) => entries));
  return rungs.map((rung, row) => {
    const ordered = byOrder(rung, smallerIsBetter);
    const xs = by === "order" ? ordered.xs : ordered.sorted.map(({ metric }) => leftIsBetter(scale, metric, smallerIsBetter));
    const at = by === "order" && ordered.sorted.length * MARK <= 1 ? xs.map(() => 3) : levels(xs, MARK, LEVELS);
    const dots = ordered.sorted.map((report, index) => ({
      report,
      fate: fateOf(report),
      // A report without a metric has no value to be placed by: it stands at the end.
      x: Number.isNaN(xs[index] ?? Number.NaN) ? 1.03 : (xs[index] ?? 0),
      y: -row - 0.24 - (0.62 * (LEVELS - 1 - (at[index] ?? 0))) / (LEVELS - 1),
    }));
    const cut = leftIsBetter(scale, rung.cut_off, smallerIsBetter);
    return { rung, dots, cutOff: by === "order" ? ordered.cutOff : Number.isNaN(cut) ? null : cut };
  });
};

const FATES: Record<Fate, number> = { continued: 0, stopped: 1, failed: 6, left: -1, open: 5 };

const fateColor = (fate: Fate, colors: ChartColors): string => (FATES[fate] < 0 ? colors.muted : colorOf({ color: FATES[fate], dash: 0 }, colors.mode));

const paintDot = (ctx: CanvasRenderingContext2D, area: Area, dot: Dot, colors: ChartColors, faint: boolean): void => {
  const [x, y, size] = [area.toX(dot.x), area.toY(dot.y), 4 * area.ratio];
  [ctx.globalAlpha, ctx.fillStyle, ctx.strokeStyle, ctx.lineWidth] = [faint ? 0.15 : 1, fateColor(dot.fate, colors), fateColor(dot.fate, colors), 1.75 * area.ratio];
  ctx.beginPath();
  // The shape tells the fate as well as the colour does.
  if (dot.fate === "stopped") {
    ctx.arc(x, y, size * 0.85, 0, 2 * Math.PI);
    ctx.stroke();
  } else if (dot.fate === "failed" || dot.fate === "left") {
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y + size);
    ctx.moveTo(x + size, y - size);
    ctx.lineTo(x - size, y + size);
    ctx.stroke();
  } else {
    ctx.arc(x, y, size, 0, 2 * Math.PI);
    ctx.fill();
  }
};

const paint = (ctx: CanvasRenderingContext2D, area: Area, lines: readonly Line[], colors: ChartColors, rivalIds: ReadonlySet<number> | null, chosen: Dot | null): void => {
  lines.forEach(({ dots, cutOff, rung }, row) => {
    const [top, bottom] = [area.toY(-row), area.toY(-row - 1)];
    [ctx.globalAlpha, ctx.fillStyle] = [1, colors.border];
    ctx.fillRect(area.left, bottom - area.ratio, area.width, area.ratio);
    if (cutOff !== null) {
      const x = area.toX(cutOff);
      [ctx.strokeStyle, ctx.lineWidth] = [colors.fg, 1.5 * area.ratio];
      ctx.setLineDash([5 * area.ratio, 4 * area.ratio]);
      ctx.beginPath();
      ctx.moveTo(x, top + 2 * area.ratio);
      ctx.lineTo(x, bottom - 2 * area.ratio);
      ctx.stroke();
      ctx.setLineDash([]);
      [ctx.fillStyle, ctx.font, ctx.textBaseline] = [colors.fg, `${11 * area.ratio}px ${colors.font}`, "top"];
      ctx.textAlign = x > area.left + area.width * 0.85 ? "right" : "left";
      ctx.fillText(`cut-off ${number(rung.cut_off)}`, x + (ctx.textAlign === "left" ? 5 : -5) * area.ratio, top + 3 * area.ratio);
    }
    for (const dot of dots) {
      const other = chosen !== null && (dot.report.trial_id !== chosen.report.trial_id && !(rivalIds?.has(dot.report.trial_id) === true && Math.floor(-dot.y) === Math.floor(-chosen.y)));
      paintDot(ctx, area, dot, colors, other);
    }
  });
};

const nearestDot = (lines: readonly Line[], area: Area, left: number, top: number): Dot | null => {
  let best: Dot | null = null;
  let least = REACH_PX * REACH_PX;
  for (const { dots } of lines) {
    for (const dot of dots) {
      const [dx, dy] = [area.toX(dot.x) - left, area.toY(dot.y) - top];
      const distance = dx * dx + dy * dy;
      if (distance < least) [best, least] = [dot, distance];
    }
  }
  return best;
};

/** Reports of one bracket: a row per rung, the best report at the left, and the line that reports had to pass. */
export const RungChart = memo(function RungChart({ bracket, rungs, metric, unit, smallerIsBetter, by, onPick }: Props) {
  const colors = useChartColors();
  const [host, setHost] = useState<PlotHost | null>(null);
  const [dot, setDot] = useState<Dot | null>(null);
  const lines = useMemo(() => linesOf(rungs, smallerIsBetter, by), [rungs, smallerIsBetter, by]);
  const rung = dot === null ? null : (rungs[Math.floor(-dot.y)] ?? null);
  const against = useMemo(() => (dot === null || rung === null ? null : rivals(rung.entries, dot.report)), [dot, rung]);
  const rivalIds = useMemo(() => (against === null ? null : new Set(against.map(({ trial_id }) => trial_id))), [against]);
  const height = rungs.length * ROW_PX + AXES_PX;
  const x = useMemo<AxisSpec>(() => ({ scale: { min: -0.02, max: 1.06, log: false }, kind: "number", zone: "UTC", labels: [{ value: 0.05, text: "better" }, { value: 0.95, text: "worse" }] }), []);
  const y = useMemo<AxisSpec>(
    () => ({
      scale: { min: -Math.max(1, rungs.length), max: 0, log: false },
      kind: "number",
      zone: "UTC",
      labels: rungs.map(({ rung: index, units }, row) => ({ value: -row - 0.5, text: `Rung ${index}: ${number(units)} ${unit}` })),
    }),
    [rungs, unit],
  );
  const find = (place: { left: number; top: number } | null) => (host === null || place === null ? null : nearestDot(lines, host.area(), place.left, place.top));
  const area = host?.area();
  return (
    <Box aria-label={`Bracket ${bracket}: ${rungs.length} rungs. The table has the same reports.`} cursor={dot === null ? undefined : "pointer"} height={`${height}px`} position="relative" role="img">
      <PlotBox
        colors={colors}
        height={height}
        onClick={(place) => {
          const found = find(place);
          if (found !== null) onPick(found.report.trial_id);
        }}
        onHost={setHost}
        onPointer={(place) => setDot(find(place))}
        paint={(ctx, painted) => paint(ctx, painted, lines, colors, rivalIds, dot)}
        when={[lines, dot]}
        x={x}
        y={y}
      />
      {dot === null || host === null || area === undefined || against === null || rung === null ? null : (
        <PointerNote left={host.over.offsetLeft + area.toX(dot.x)} top={host.over.offsetTop + area.toY(dot.y) + 10} width={host.over.offsetLeft + host.over.clientWidth}>
          <RungNote against={against} cutOff={rung.cut_off} metric={metric} report={dot.report} smallerIsBetter={smallerIsBetter} />
        </PointerNote>
      )}
    </Box>
  );
});
