// @vitest-environment node
import { expect, test } from "vitest";

import { HoverBus, ZoomBus } from "./hover";

const place = { axis: "time", x: 5, chart: "a", series: null };

test("each chart learns the place, and equal places notify once", () => {
  const bus = new HoverBus();
  const seen: (number | null)[] = [];
  const end = bus.subscribe((value) => seen.push(value?.x ?? null));
  bus.set(place);
  bus.set({ ...place });
  bus.set({ ...place, x: 6 });
  end();
  bus.set(null);
  expect(seen).toEqual([5, 6]);
});

test("a chart that the pointer leaves does not clear the place of another chart", () => {
  const bus = new HoverBus();
  bus.set(place);
  bus.leave("b");
  expect(bus.value).toEqual(place);
  bus.leave("a");
  expect(bus.value).toBeNull();
});

test("charts of one axis share their zoom until it is reset", () => {
  const bus = new ZoomBus();
  const seen: string[] = [];
  bus.subscribe((axis) => seen.push(axis));
  bus.set("time", [1, 2]);
  expect(bus.get("time")).toEqual([1, 2]);
  expect(bus.get("batches")).toBeNull();
  bus.set("time", null);
  bus.set("time", null);
  expect(seen).toEqual(["time", "time"]);
});
