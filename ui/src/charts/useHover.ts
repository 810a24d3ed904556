import { useEffect, useState } from "react";

import { useChartGroup } from "./ChartContext";
import { type Hover } from "./hover";

/** Return the place that the charts of an axis point at, at most once per frame. */
export const useHover = (axis: string, onFrame?: (hover: Hover | null) => void): Hover | null => {
  const { hover: bus } = useChartGroup();
  const [hover, setHover] = useState<Hover | null>(null);
  useEffect(() => {
    let frame: number | null = null;
    const show = () => {
      frame = null;
      const { value } = bus;
      const mine = value !== null && value.axis === axis ? value : null;
      onFrame?.(mine);
      setHover(mine);
    };
    const end = bus.subscribe(() => {
      frame ??= requestAnimationFrame(show);
    });
    // A chart that appears later shows the place as well.
    if (bus.value !== null) frame = requestAnimationFrame(show);
    return () => {
      end();
      if (frame !== null) cancelAnimationFrame(frame);
    };
  }, [bus, axis, onFrame]);
  return hover;
};
