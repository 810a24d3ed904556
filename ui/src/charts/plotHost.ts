/** Axes, grid, cursor and zoom of a chart by uPlot. The data is painted by the caller, so curves need no common x. */
import uPlot from "uplot";

import { type AxisKind, labelledValues, labelTexts } from "./axisText";
import { placeOf, type Scale, valueAt } from "./scales";
import { type ChartColors } from "./theme";

/** Pixels between two labels of an axis. */
const LABEL_PX = { x: 90, y: 32 };

/** Pixels between two labels of rows. */
const ROW_PX = 14;

export interface AxisSpec {
  readonly scale: Scale;
  readonly kind: AxisKind;
  readonly zone: string;
  /** Name below the axis. */
  readonly name?: string;
  /** Labels of rows or categories, instead of numbers. */
  readonly labels?: readonly { readonly value: number; readonly text: string }[] | null;
}

/** Area of the data in pixels of the canvas, and the mapping of values to it. */
export interface Area {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  /** Pixels of the canvas per pixel of CSS. */
  readonly ratio: number;
  readonly toX: (value: number) => number;
  readonly toY: (value: number) => number;
}

export interface PlotCalls {
  /** Paint the data. The canvas is clipped to the area. */
  paint: (ctx: CanvasRenderingContext2D, area: Area) => void;
  /** The pointer is at a place of the area, in pixels of CSS; null: it left the area. */
  onPointer: (place: { left: number; top: number } | null) => void;
  /** The user dragged over a range of x; null: asked for the whole range. */
  onZoom: (range: [number, number] | null) => void;
  /** The user clicked at a place of the area. */
  onClick: (place: { left: number; top: number }) => void;
}

/** Least width of the y axis in pixels, so that the areas of charts below each other are aligned. */
const LEAST_Y_PX = 58;

/** Room at the right edge for half of the last label of a clock, in pixels. */
const RIGHT_PX = 28;

/** Room beside the area for dots at its edges, in pixels. */
const EDGE_PX = 5;

/** Longest label beside the y axis, in characters. */
const LONGEST = 24;

const shortened = (text: string): string => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

const spread = <T>(items: readonly T[], most: number): T[] => {
  const stride = Math.max(1, Math.ceil(items.length / Math.max(1, most)));
  return items.filter((_, index) => index % stride === 0);
};

const textWidth = (u: uPlot, texts: readonly string[] | null, font: string): number => {
  u.ctx.save();
  u.ctx.font = font;
  const widest = Math.max(0, ...(texts ?? []).map((text) => u.ctx.measureText(text).width));
  u.ctx.restore();
  return widest / uPlot.pxRatio;
};

/** Parts of a chart that not every chart has. */
export interface PlotParts {
  /** A vertical line at the pointer. */
  readonly crosshair: boolean;
  /** Drags choose a range of x. */
  readonly zoom: boolean;
}

/** One chart in a container. Its size follows the container. */
export class PlotHost {
  readonly #plot: uPlot;
  readonly #observer: ResizeObserver;
  #x: AxisSpec;
  #y: AxisSpec;
  #colors: ChartColors;
  #silent = false;
  #dragged = false;
  readonly #calls: PlotCalls;

  constructor(container: HTMLElement, height: number, x: AxisSpec, y: AxisSpec, colors: ChartColors, calls: PlotCalls, parts: PlotParts) {
    [this.#x, this.#y, this.#colors, this.#calls] = [x, y, colors, calls];
    this.#plot = new uPlot(this.#options(container.clientWidth || 600, height, parts), this.#corners(), container);
    const { over } = this.#plot;
    over.addEventListener("dblclick", () => this.#calls.onZoom(null));
    over.addEventListener("click", ({ clientX, clientY }) => {
      const box = over.getBoundingClientRect();
      if (!this.#dragged) this.#calls.onClick({ left: clientX - box.left, top: clientY - box.top });
      this.#dragged = false;
    });
    this.#observer = new ResizeObserver(() => {
      const width = container.clientWidth;
      if (width > 0 && (width !== this.#plot.width || container.clientHeight !== this.#plot.height)) {
        this.#plot.setSize({ width, height: container.clientHeight || height });
      }
    });
    this.#observer.observe(container);
  }

  /** Element above the area of the data. */
  get over(): HTMLDivElement {
    return this.#plot.over;
  }

  /** Show other ranges or colours, and paint again. */
  update(x: AxisSpec, y: AxisSpec, colors: ChartColors): void {
    [this.#x, this.#y, this.#colors] = [x, y, colors];
    this.#plot.setData(this.#corners(), true);
    // uPlot keeps the labels of an axis whose range stays the same, such as that of another hyperparameter from 0 to 1.
    this.#plot.redraw(false, true);
  }

  /** Paint again. */
  redraw(): void {
    this.#plot.redraw(false, false);
  }

  /** Return the area in pixels of CSS, relative to `over`. */
  area(): Area {
    return this.#area({ left: 0, top: 0, width: this.#plot.over.clientWidth, height: this.#plot.over.clientHeight }, 1);
  }

  /** Return the value of x at a place of `over`. */
  xAt(left: number): number {
    return valueAt(this.#x.scale, left / Math.max(1, this.#plot.over.clientWidth));
  }

  /** Show the vertical line at a value of x, or hide it. */
  point(x: number | null): void {
    const place = x === null ? Number.NaN : placeOf(this.#x.scale, x);
    const outside = !(place >= 0 && place <= 1);
    this.#silent = true;
    this.#plot.setCursor({ left: outside ? -10 : place * this.#plot.over.clientWidth, top: -10 }, false);
    this.#silent = false;
  }

  destroy(): void {
    this.#observer.disconnect();
    this.#plot.destroy();
  }

  #corners(): uPlot.AlignedData {
    return [[this.#x.scale.min, this.#x.scale.max], [this.#y.scale.min, this.#y.scale.max]];
  }

  #area(box: { left: number; top: number; width: number; height: number }, ratio: number): Area {
    const [x, y] = [this.#x.scale, this.#y.scale];
    return {
      ...box,
      ratio,
      toX: (value) => box.left + placeOf(x, value) * box.width,
      toY: (value) => box.top + (1 - placeOf(y, value)) * box.height,
    };
  }

  #paint(u: uPlot): void {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    const edge = EDGE_PX * uPlot.pxRatio;
    ctx.rect(bbox.left - edge, bbox.top - edge, bbox.width + 2 * edge, bbox.height + 2 * edge);
    ctx.clip();
    this.#calls.paint(ctx, this.#area(bbox, uPlot.pxRatio));
    ctx.restore();
  }

  #axis(name: "x" | "y"): uPlot.Axis {
    const spec = () => (name === "x" ? this.#x : this.#y);
    const font = `12px ${this.#colors.font}`;
    const size = (u: uPlot, texts: string[] | null) => (name === "x" ? 26 : Math.max(LEAST_Y_PX, Math.ceil(textWidth(u, texts, `${12 * uPlot.pxRatio}px ${this.#colors.font}`)) + 14));
    return {
      scale: name,
      font,
      size,
      gap: 4,
      ...(spec().name ? { label: spec().name, labelFont: font, labelSize: 16, labelGap: 0 } : {}),
      stroke: () => this.#colors.muted,
      grid: { show: !spec().labels || name === "x", stroke: () => this.#colors.grid, width: 1 },
      ticks: { stroke: () => this.#colors.border, width: 1, size: 4 },
      border: { show: true, stroke: () => this.#colors.border, width: 1 },
      filter: (_u, values) => values,
      splits: (u) => {
        const { scale, kind, zone, labels } = spec();
        const pixels = (name === "x" ? u.bbox.width : u.bbox.height) / uPlot.pxRatio;
        if (!labels) return labelledValues(scale, kind, Math.max(2, Math.floor(pixels / LABEL_PX[name])), zone);
        const inside = labels.map(({ value }) => value).filter((value) => value >= scale.min && value <= scale.max);
        return spread(inside, pixels / (name === "x" ? LABEL_PX.x : ROW_PX));
      },
      values: (_u, values) => {
        const { kind, zone, labels } = spec();
        if (!labels) return labelTexts(values, kind, zone);
        const texts = new Map(labels.map(({ value, text }) => [value, shortened(text)]));
        return values.map((value) => texts.get(value) ?? "");
      },
    };
  }

  #options(width: number, height: number, parts: PlotParts): uPlot.Options {
    const distr = (scale: Scale) => (scale.log ? 3 : 1);
    return {
      width,
      height,
      padding: [8, RIGHT_PX, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, distr: distr(this.#x.scale), range: () => [this.#x.scale.min, this.#x.scale.max] },
        y: { distr: distr(this.#y.scale), range: () => [this.#y.scale.min, this.#y.scale.max] },
      },
      axes: [this.#axis("x"), this.#axis("y")],
      series: [{}, { paths: () => null, points: { show: false } }],
      cursor: { x: parts.crosshair, y: false, points: { show: false }, drag: { x: parts.zoom, y: false, setScale: false } },
      hooks: {
        draw: [(u) => this.#paint(u)],
        setCursor: [
          (u) => {
            const { left = -10, top = -10 } = u.cursor;
            if (!this.#silent) this.#calls.onPointer(left < 0 ? null : { left, top });
          },
        ],
        setSelect: [
          (u) => {
            const { left, width: wide } = u.select;
            this.#dragged = wide > 4;
            if (wide > 4) this.#calls.onZoom([this.xAt(left), this.xAt(left + wide)]);
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    };
  }
}
