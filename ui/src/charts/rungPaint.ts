/** Paint of the rung chart. */
import { number } from "../format/numbers";
import { colorOf } from "./curves";
import { type Area } from "./plotHost";
import { type Fate } from "./rungLayout";
import { type Dot, type Line } from "./rungLines";
import { type ChartColors } from "./theme";

/** Colours of fates, as indices in the palette; -1 is the colour of secondary text. */
const FATES: Record<Fate, number> = { continued: 0, finished: 2, stopped: 1, failed: 6, left: -1 };

export const fateColor = (fate: Fate, colors: ChartColors): string => (FATES[fate] < 0 ? colors.muted : colorOf({ color: FATES[fate], dash: 0 }, colors.mode));

/** Paint the mark of a fate: the shape tells it as well as the colour does. */
export const paintMark = (ctx: CanvasRenderingContext2D, fate: Fate, x: number, y: number, size: number, colors: ChartColors): void => {
  [ctx.fillStyle, ctx.strokeStyle, ctx.lineWidth] = [fateColor(fate, colors), fateColor(fate, colors), size * 0.45];
  ctx.beginPath();
  if (fate === "left") {
    ctx.strokeRect(x - size * 0.75, y - size * 0.75, size * 1.5, size * 1.5);
    return;
  }
  if (fate === "failed") {
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y + size);
    ctx.moveTo(x + size, y - size);
    ctx.lineTo(x - size, y + size);
    ctx.stroke();
    return;
  }
  if (fate === "finished") ctx.rect(x - size * 0.85, y - size * 0.85, size * 1.7, size * 1.7);
  else ctx.arc(x, y, fate === "stopped" ? size * 0.85 : size, 0, 2 * Math.PI);
  if (fate === "stopped") ctx.stroke();
  else ctx.fill();
};

const paintCutOff = (ctx: CanvasRenderingContext2D, area: Area, line: Line, row: number, colors: ChartColors): void => {
  if (line.cutOff === null) return;
  const [top, bottom, x] = [area.toY(-row), area.toY(-row - 1), area.toX(line.cutOff)];
  [ctx.strokeStyle, ctx.lineWidth] = [colors.fg, 1.5 * area.ratio];
  ctx.setLineDash([5 * area.ratio, 4 * area.ratio]);
  ctx.beginPath();
  ctx.moveTo(x, top + 2 * area.ratio);
  ctx.lineTo(x, bottom - 2 * area.ratio);
  ctx.stroke();
  ctx.setLineDash([]);
  [ctx.fillStyle, ctx.font, ctx.textBaseline] = [colors.fg, `${11 * area.ratio}px ${colors.font}`, "top"];
  const isRight = x > area.left + area.width * 0.85;
  ctx.textAlign = isRight ? "right" : "left";
  ctx.fillText(`cut-off ${number(line.rung.cut_off)}`, x + (isRight ? -5 : 5) * area.ratio, top + 3 * area.ratio);
};

/** Paint all rows. Around the chosen report only the reports with which it was compared stay clear. */
export const paintRungs = (ctx: CanvasRenderingContext2D, area: Area, lines: readonly Line[], colors: ChartColors, chosen: Dot | null, rivals: ReadonlySet<number> | null): void => {
  lines.forEach((line, row) => {
    ctx.globalAlpha = 1;
    ctx.fillStyle = colors.border;
    ctx.fillRect(area.left, area.toY(-row - 1) - area.ratio, area.width, area.ratio);
    paintCutOff(ctx, area, line, row, colors);
    for (const dot of line.dots) {
      const isClear = chosen === null || dot.report.trial_id === chosen.report.trial_id || (dot.row === chosen.row && rivals?.has(dot.report.trial_id) === true);
      ctx.globalAlpha = isClear ? 1 : 0.15;
      paintMark(ctx, dot.fate, area.toX(dot.x), area.toY(dot.y), 4 * area.ratio, colors);
    }
  });
};

/** Distance at which a report counts as pointed at, in pixels. */
const REACH_PX = 8;

/** Return the report at a place, or null. */
export const dotAt = (lines: readonly Line[], area: Area, left: number, top: number): Dot | null => {
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
