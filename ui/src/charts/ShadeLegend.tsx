import { Box, HStack } from "@chakra-ui/react";

import { sequential } from "./palette";
import { useChartColors } from "./theme";

const STEPS = [0, 0.25, 0.5, 0.75, 1];

/** Colours of the metric, from worse to better. */
export const ShadeLegend = () => {
  const { mode } = useChartColors();
  return (
    <HStack color="fg.muted" fontSize="xs" gap={1}>
      worse
      <Box aria-hidden="true" borderRadius="sm" height="10px" style={{ background: `linear-gradient(to right, ${STEPS.map((step) => sequential(step, mode)).join(", ")})` }} width="80px" />
      better
    </HStack>
  );
};
