import { chakra, HStack } from "@chakra-ui/react";
import { useEffect, useRef } from "react";

import { type Fate } from "./rungLayout";
import { FATE_TEXTS } from "./RungNote";
import { paintMark } from "./rungPaint";
import { type ChartColors, useChartColors } from "./theme";

const SIZE = 12;
const SHOWN: readonly Fate[] = ["continued", "stopped", "finished", "failed", "left"];

const Mark = ({ fate, colors }: { fate: Fate; colors: ChartColors }) => {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current;
    if (element !== null) [element.width, element.height] = [2 * SIZE, 2 * SIZE];
    const ctx = element?.getContext("2d");
    if (!ctx) return;
    ctx.clearRect(0, 0, 2 * SIZE, 2 * SIZE);
    paintMark(ctx, fate, SIZE, SIZE, 0.65 * SIZE, colors);
  }, [fate, colors]);
  return <chakra.canvas aria-hidden="true" ref={canvas} style={{ width: SIZE, height: SIZE }} />;
};

/** Marks of the rung chart and their meanings. */
export const RungLegend = () => {
  const colors = useChartColors();
  return (
    <HStack color="fg.muted" columnGap={4} fontSize="sm" rowGap={0} wrap="wrap">
      {SHOWN.map((fate) => (
        <HStack gap={1} key={fate}>
          <Mark colors={colors} fate={fate} /> {FATE_TEXTS[fate]}
        </HStack>
      ))}
    </HStack>
  );
};
