/** A canvas for charts in tests: it accepts every call and paints nothing. */
import { vi } from "vitest";

/** Width of a character, in pixels. */
const CHARACTER_PX = 6;

const context = (): CanvasRenderingContext2D => {
  const values: Record<PropertyKey, unknown> = { measureText: (text: string) => ({ width: text.length * CHARACTER_PX }) };
  return new Proxy(values, { get: (target, name) => (name in target ? target[name] : () => undefined) }) as unknown as CanvasRenderingContext2D;
};

/** Let charts paint in a test. */
export const serveCanvas = (): void => {
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockImplementation((() => context()) as never);
};
