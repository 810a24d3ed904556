import { chakra } from "@chakra-ui/react";

import { colorOf } from "./curves";
import { DASHES, type Look } from "./palette";
import { useChartColors } from "./theme";

/** A short piece of a line in its colour and dash. */
export const Swatch = ({ look }: { look: Look }) => {
  const { mode } = useChartColors();
  return (
    <chakra.svg aria-hidden="true" flexShrink={0} height="8px" viewBox="0 0 20 8" width="20px">
      <line stroke={colorOf(look, mode)} strokeDasharray={(DASHES[look.dash] ?? []).join(" ")} strokeWidth={3} x1={0} x2={20} y1={4} y2={4} />
    </chakra.svg>
  );
};
