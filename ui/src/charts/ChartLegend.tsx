import { Box, HStack } from "@chakra-ui/react";

import { NONE, NOT_FINITE } from "../format/numbers";
import { type AxisKind } from "./axisText";
import { type Curve, readings, valueOf } from "./curves";
import { endsInGap } from "./lines";
import { type PlotHost } from "./plotHost";
import { valueText, valueTexts } from "./readingText";
import { Swatch } from "./Swatch";
import { useHover } from "./useHover";

const lastValue = (curve: Curve): number | undefined => valueOf(curve, curve.points.ys.findLastIndex((y) => y !== null)) ?? undefined;

interface Props {
  host: PlotHost | null;
  axis: string;
  curves: readonly Curve[];
  xKind: AxisKind;
  yKind: AxisKind;
  zone: string;
}

/** Names of the curves with their values at the pointer, and with their last values while there is none. */
export const ChartLegend = ({ host, axis, curves, xKind, yKind, zone }: Props) => {
  const hover = useHover(axis);
  const found = hover === null || host === null ? [] : readings(curves, hover.x, null, host.area());
  const at = hover !== null && found.length > 0 ? hover.x : null;
  const values = new Map<string, number>();
  for (const curve of curves) {
    const y = at === null ? lastValue(curve) : found.find((reading) => reading.curve.id === curve.id)?.y;
    if (y !== undefined) values.set(curve.id, y);
  }
  const texts = valueTexts([...values.values()], yKind, zone);
  const textOf = new Map([...values.keys()].map((id, index) => [id, texts[index]]));
  return (
    <HStack align="start" data-testid="chart-legend" fontSize="xs" gap={4} mb={1}>
      <Box color="fg.muted" flexShrink={0} fontVariantNumeric="tabular-nums" minW={xKind === "clock" ? "7.5rem" : "3.5rem"}>
        {at === null ? "last" : valueText(found[0]?.x ?? at, xKind, zone)}
      </Box>
      <HStack columnGap={4} flex="1" minW={0} rowGap={0} wrap="wrap">
        {curves.map(({ id, name, look, points }) => (
          <HStack data-curve={id} gap={1} key={id} minW={0}>
            <Swatch look={look} />
            <Box color="fg.muted" maxW="16rem" truncate>
              {name}
            </Box>
            <Box fontVariantNumeric="tabular-nums" minW="3.2rem">
              {at === null && endsInGap(points) ? NOT_FINITE : (textOf.get(id) ?? NONE)}
            </Box>
          </HStack>
        ))}
      </HStack>
    </HStack>
  );
};
