/** A chart as a PNG file: title and legend above its canvases, in the colours of the page. */
import { save } from "./csv";
import { COLORS, DASHES, type Look } from "./palette";
import { type ChartColors } from "./theme";

/** One series in the legend. */
export interface Named {
  readonly name: string;
  readonly look: Look;
}

/** A place of the legend, in pixels. */
export interface Place {
  readonly item: Named;
  readonly left: number;
  readonly top: number;
}

const PADDING = 12;
const TITLE_PX = 26;
const ROW_PX = 18;
const SWATCH_PX = 24;
const GAP_PX = 18;

/** Series in the legend of a file. More would hide the chart. */
const MOST = 40;

const LONGEST = 60;

const shortened = (name: string): string => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);

/** Return the places of a legend in rows of a width, and the height of all rows. */
export const placed = (items: readonly Named[], width: number, textWidth: (text: string) => number): { places: Place[]; height: number } => {
  const places: Place[] = [];
  let [left, top] = [0, 0];
  for (const { name, look } of items.slice(0, MOST)) {
    const text = shortened(name);
    const room = SWATCH_PX + textWidth(text);
    if (left > 0 && left + room > width) [left, top] = [0, top + ROW_PX];
    places.push({ item: { name: text, look }, left, top });
    left += room + GAP_PX;
  }
  return { places, height: places.length === 0 ? 0 : top + ROW_PX };
};

const paintLegend = (ctx: CanvasRenderingContext2D, places: readonly Place[], at: number, colors: ChartColors): void => {
  ctx.font = `12px ${colors.font}`;
  for (const { item, left, top } of places) {
    const middle = at + top + ROW_PX / 2;
    [ctx.strokeStyle, ctx.lineWidth] = [COLORS[colors.mode][item.look.color] ?? colors.fg, 3];
    ctx.setLineDash([...(DASHES[item.look.dash] ?? [])]);
    ctx.beginPath();
    ctx.moveTo(PADDING + left, middle);
    ctx.lineTo(PADDING + left + SWATCH_PX - 6, middle);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = colors.fg;
    ctx.fillText(item.name, PADDING + left + SWATCH_PX, middle);
  }
};

const isClear = (color: string): boolean => color === "transparent" || /[,/] ?0\)$/.test(color);

const paintBox = (ctx: CanvasRenderingContext2D, style: CSSStyleDeclaration, left: number, top: number, box: DOMRect): void => {
  ctx.beginPath();
  ctx.roundRect(left, top, box.width, box.height, Math.min(parseFloat(style.borderRadius) || 0, box.height / 2));
  if (!isClear(style.backgroundColor)) {
    ctx.fillStyle = style.backgroundColor;
    ctx.fill();
  }
  if (parseFloat(style.borderTopWidth) > 0 && !isClear(style.borderTopColor)) {
    [ctx.strokeStyle, ctx.lineWidth] = [style.borderTopColor, parseFloat(style.borderTopWidth)];
    ctx.stroke();
  }
};

/** Paint each word of a text at its place, because a text may have several lines. */
const paintWords = (ctx: CanvasRenderingContext2D, text: Text, style: CSSStyleDeclaration, dx: number, dy: number): void => {
  [ctx.font, ctx.fillStyle, ctx.textBaseline] = [`${style.fontWeight} ${style.fontSize} ${style.fontFamily}`, style.color, "middle"];
  const range = document.createRange();
  for (const { 0: word, index } of text.data.matchAll(/\S+/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    const box = range.getBoundingClientRect();
    if (box.width > 0) ctx.fillText(word, box.left + dx, box.top + box.height / 2 + dy);
  }
};

/** Paint the elements above the canvases of a chart: axes, labels, bars and legends that are HTML. */
const paintElements = (ctx: CanvasRenderingContext2D, body: Element, dx: number, dy: number): void => {
  for (const element of body.querySelectorAll<HTMLElement>("*:not(svg, svg *, canvas)")) {
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    if (style.visibility !== "visible") continue;
    ctx.save();
    if (style.overflow !== "visible") {
      ctx.beginPath();
      ctx.rect(box.left + dx, box.top + dy, box.width, box.height);
      ctx.clip();
    }
    if (box.width > 0 && box.height > 0) paintBox(ctx, style, box.left + dx, box.top + dy, box);
    for (const node of element.childNodes) if (node instanceof Text) paintWords(ctx, node, style, dx, dy);
    ctx.restore();
  }
};

/** Return a chart with its title and legend as one picture, or null where the browser cannot paint. */
export const imageOf = (body: Element, title: string, legend: readonly Named[], colors: ChartColors): HTMLCanvasElement | null => {
  const frame = body.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  const picture = document.createElement("canvas");
  const ctx = picture.getContext("2d");
  if (ctx === null) return null;
  ctx.font = `12px ${colors.font}`;
  const { places, height } = placed(legend, frame.width, (text) => ctx.measureText(text).width);
  const head = PADDING + TITLE_PX + height;
  [picture.width, picture.height] = [Math.round((frame.width + 2 * PADDING) * ratio), Math.round((head + frame.height + PADDING) * ratio)];
  ctx.scale(ratio, ratio);
  ctx.fillStyle = colors.bg;
  ctx.fillRect(0, 0, frame.width + 2 * PADDING, head + frame.height + PADDING);
  [ctx.fillStyle, ctx.font, ctx.textBaseline] = [colors.fg, `bold 15px ${colors.font}`, "middle"];
  ctx.fillText(title, PADDING, PADDING + TITLE_PX / 2 - 3, frame.width);
  paintLegend(ctx, places, PADDING + TITLE_PX, colors);
  for (const canvas of body.querySelectorAll("canvas")) {
    const box = canvas.getBoundingClientRect();
    if (canvas.width > 0 && canvas.height > 0) ctx.drawImage(canvas, PADDING + box.left - frame.left, head + box.top - frame.top, box.width, box.height);
  }
  if (body instanceof HTMLElement && body.dataset.picture === "html") paintElements(ctx, body, PADDING - frame.left, head - frame.top);
  return picture;
};

/** Let the browser save a chart as a PNG file. */
export const saveImage = (body: Element, title: string, legend: readonly Named[], colors: ChartColors): void =>
  imageOf(body, title, legend, colors)?.toBlob((blob) => {
    if (blob !== null) save(`${title}.png`, blob);
  }, "image/png");
