import { Box } from "@chakra-ui/react";
import { Global } from "@emotion/react";
import { useEffect, useRef, useState } from "react";
import uplotCss from "uplot/dist/uPlot.min.css?inline";

import { type AxisSpec, type PlotCalls, PlotHost } from "./plotHost";
import { type ChartColors } from "./theme";
import { useStable } from "./useStable";

interface Props extends Partial<Omit<PlotCalls, "paint">> {
  x: AxisSpec;
  y: AxisSpec;
  height: number;
  colors: ChartColors;
  paint: PlotCalls["paint"];
  /** A vertical line at the pointer. */
  crosshair?: boolean;
  /** Paint again when one of these values changes. */
  when: readonly unknown[];
  onHost?: (host: PlotHost | null) => void;
}

const nothing = () => undefined;

/** Axes with an area that the caller paints. */
export const PlotBox = ({ x, y, height, colors, paint, when, crosshair = true, onPointer = nothing, onZoom, onClick = nothing, onHost = nothing }: Props) => {
  const hasZoom = onZoom !== undefined;
  const container = useRef<HTMLDivElement>(null);
  const [host, setHost] = useState<PlotHost | null>(null);
  const calls = { paint: useStable(paint), onPointer: useStable(onPointer), onZoom: useStable(onZoom ?? nothing), onClick: useStable(onClick) };
  const newest = useRef({ x, y, colors, calls });
  const report = useStable(onHost);
  const [xLog, yLog, rows, nameX, nameY] = [x.scale.log, y.scale.log, Boolean(y.labels), x.name, y.name];
  useEffect(() => {
    newest.current = { x, y, colors, calls };
  });
  useEffect(() => {
    const element = container.current;
    if (element === null) return undefined;
    const now = newest.current;
    const made = new PlotHost(element, height, now.x, now.y, now.colors, now.calls, { crosshair, zoom: hasZoom });
    setHost(made);
    report(made);
    return () => {
      made.destroy();
      setHost(null);
      report(null);
    };
  }, [height, xLog, yLog, rows, nameX, nameY, report, crosshair, hasZoom]);
  useEffect(() => {
    host?.update(x, y, colors);
    // The caller names the values on which its paint depends.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [host, x, y, colors, ...when]);
  return (
    <Box aria-hidden="true" height="100%">
      <Global styles={uplotCss} />
      <Box height="100%" ref={container} />
    </Box>
  );
};
