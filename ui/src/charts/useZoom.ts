import { useCallback, useSyncExternalStore } from "react";

import { useChartGroup } from "./ChartContext";

/** Return the range that the charts of an axis show, and a function that changes it. Null is everything. */
export const useZoom = (axis: string): [readonly [number, number] | null, (range: readonly [number, number] | null) => void] => {
  const { zoom } = useChartGroup();
  const subscribe = useCallback((changed: () => void) => zoom.subscribe(changed), [zoom]);
  const range = useSyncExternalStore(subscribe, () => zoom.get(axis));
  const set = useCallback((wanted: readonly [number, number] | null) => zoom.set(axis, wanted), [zoom, axis]);
  return [range, set];
};
