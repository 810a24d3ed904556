import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { type AxisSpec, PlotHost } from "./plotHost";
import { type ChartColors } from "./theme";

const COLORS = { font: "sans-serif", muted: "gray", grid: "gray", border: "gray", fg: "black", mode: "light" } as unknown as ChartColors;

const axis = (...texts: string[]): AxisSpec => ({
  scale: { min: 0, max: 1, log: false },
  kind: "number",
  zone: "UTC",
  labels: texts.map((text, index) => ({ value: (index + 1) / 4, text })),
});

let written: string[] = [];

beforeEach(() => {
  written = [];
  const nothing = () => undefined;
  const known: Record<string, unknown> = {
    fillText: (text: string) => void written.push(text),
    measureText: (text: string) => ({ width: 7 * text.length }),
  };
  const context = new Proxy(known, { get: (of, name) => of[String(name)] ?? nothing, set: () => true });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(context as never);
  vi.stubGlobal("Path2D", vi.fn());
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

it("writes the labels of another axis although its range is the same", async () => {
  const element = document.createElement("div");
  const calls = { paint: () => undefined, onPointer: () => undefined, onZoom: () => undefined, onClick: () => undefined };
  const host = new PlotHost(element, 300, axis("0.1", "0.2"), axis("low"), COLORS, calls, { crosshair: false, zoom: false });
  await Promise.resolve();
  expect(written).toEqual(expect.arrayContaining(["0.1", "0.2", "low"]));
  written = [];
  host.update(axis("1e-3", "0.01"), axis("low"), COLORS);
  await Promise.resolve();
  expect(written).toEqual(expect.arrayContaining(["1e-3", "0.01", "low"]));
  expect(written).not.toContain("0.1");
  host.destroy();
});
