import { Box, chakra } from "@chakra-ui/react";
import { memo, type PointerEvent, type ReactNode, type Ref, useEffect, useMemo, useRef, useState } from "react";

import { type Brushes, brushed, moved } from "./brushes";
import { type Dimension } from "./dimensions";
import { ParallelAxis } from "./ParallelAxis";
import { axisX, type Box as Area, cleared, lineAt, type Lines, paintLines, paintOne } from "./parallelPaint";
import { PointerNote } from "./PointerNote";
import { useChartColors } from "./theme";

interface Props {
  dimensions: readonly Dimension[];
  shades: Float32Array;
  /** 1 for trials within all ranges. */
  marks: Uint8Array;
  brushes: Brushes;
  onBrush: (brushes: Brushes) => void;
  /** Move an axis to a place in the order. */
  onMove: (name: string, to: number) => void;
  onLog: (name: string) => void;
  onHide: (name: string) => void;
  describe: (index: number) => ReactNode;
  onPick: (index: number) => void;
  height?: number;
}

const HEAD_PX = 64;
const FOOT_PX = 40;
const SIDE_PX = 70;
const AXIS_PX = 130;
const REACH_PX = 6;

/** Return the width of an element, and measure again when it changes. */
const useWidth = () => {
  const [width, setWidth] = useState(900);
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (element.current === null) return undefined;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 900)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return { width, element };
};

const Layer = ({ canvas, width, height }: { canvas: Ref<HTMLCanvasElement>; width: number; height: number }) => (
  <chakra.canvas
    aria-hidden="true"
    left={0}
    pointerEvents="none"
    position="absolute"
    ref={canvas}
    style={{ width: `${width}px`, height: `${height}px` }}
    top={0}
  />
);

/** One line per trial through its hyperparameters and its metric. Ranges on the axes select trials. */
export const ParallelCoordinates = memo(function ParallelCoordinates(props: Props) {
  const { dimensions, shades, marks, brushes, onBrush, describe, onPick, height = 380 } = props;
  const colors = useChartColors();
  const { width: room, element } = useWidth();
  const width = Math.max(room, dimensions.length * AXIS_PX);
  const area = useMemo<Area>(
    () => ({ left: SIDE_PX, top: HEAD_PX, width: width - 2 * SIDE_PX, height: height - HEAD_PX - FOOT_PX }),
    [width, height],
  );
  const lines = useMemo<Lines>(() => ({ columns: dimensions.map(({ places }) => places), shades }), [dimensions, shades]);
  const faint = useRef<HTMLCanvasElement>(null);
  const full = useRef<HTMLCanvasElement>(null);
  const above = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<{ index: number; left: number; top: number } | null>(null);
  const hasBrush = Object.keys(brushes).length > 0;

  useEffect(() => {
    const ctx = faint.current === null ? null : cleared(faint.current, width, height);
    if (ctx === null || !hasBrush) return undefined;
    return paintLines(ctx, lines, area, colors, () => true, true);
  }, [lines, area, colors, width, height, hasBrush]);
  useEffect(() => {
    const ctx = full.current === null ? null : cleared(full.current, width, height);
    if (ctx === null) return undefined;
    return paintLines(ctx, lines, area, colors, (index) => marks[index] === 1, false);
  }, [lines, marks, area, colors, width, height]);
  useEffect(() => {
    const ctx = above.current === null ? null : cleared(above.current, width, height);
    if (ctx !== null && at !== null) paintOne(ctx, lines, at.index, area, colors);
  }, [at, lines, area, colors, width, height]);

  const onPointerMove = (event: PointerEvent<HTMLDivElement>) => {
    if (event.buttons !== 0) {
      setAt(null);
      return;
    }
    const box = event.currentTarget.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const index = lineAt(lines, marks, area, left, top, REACH_PX);
    setAt(index < 0 ? null : { index, left, top });
  };

  return (
    <Box maxW="100%" overflowX="auto" ref={element}>
      <Box
        aria-label={`Parallel coordinates of ${shades.length} trials with ${dimensions.length} axes`}
        cursor={at === null ? undefined : "pointer"}
        data-picture="html"
        data-trials={shades.length}
        height={`${height}px`}
        onClick={() => {
          if (at !== null) onPick(at.index);
        }}
        onPointerLeave={() => setAt(null)}
        onPointerMove={onPointerMove}
        position="relative"
        role="group"
        style={{ width: `${width}px` }}
      >
        <Layer canvas={faint} height={height} width={width} />
        <Layer canvas={full} height={height} width={width} />
        <Layer canvas={above} height={height} width={width} />
        {dimensions.map((dimension, index) => (
          <ParallelAxis
            dimension={dimension}
            first={index === 0}
            height={area.height}
            key={dimension.name}
            last={index === dimensions.length - 1}
            left={axisX(area, index, dimensions.length)}
            onBrush={(from, to) => onBrush(brushed(brushes, dimension.name, from, to))}
            onHide={() => props.onHide(dimension.name)}
            onLog={() => props.onLog(dimension.name)}
            onMove={(by) => props.onMove(dimension.name, index + by)}
            onShift={(by) => onBrush(moved(brushes, dimension.name, by))}
            range={Object.hasOwn(brushes, dimension.name) ? (brushes[dimension.name] ?? null) : null}
            top={area.top}
          />
        ))}
        {at === null ? null : (
          <PointerNote left={at.left} top={at.top - 20} width={width}>
            {describe(at.index)}
          </PointerNote>
        )}
      </Box>
    </Box>
  );
});
