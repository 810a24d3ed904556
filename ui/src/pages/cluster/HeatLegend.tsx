import { Box, HStack, Text } from "@chakra-ui/react";
import { useContext } from "react";

import { sequential } from "../../charts/palette";
import { useChartColors } from "../../charts/theme";
import { HeatContext, type HeatName, heatText } from "./heat";

const STEPS = [0, 0.2, 0.4, 0.6, 0.8, 1];

const WORDS: Record<Exclude<HeatName, "">, string> = {
  load: "Utilization of the GPU, or of the CPUs of the host, in the latest minute.",
  memory: "Used share of the memory of the GPU, or of the host, in the latest minute.",
  temperature: "Temperature of the GPU in the latest minute. CPU slots have none.",
  power: "Power draw of the GPU in the latest minute. CPU slots have none.",
};

/** Scale of the colours of the heat map with its unit, and the look of a slot that nothing measures. */
export const HeatLegend = () => {
  const { name, heat } = useContext(HeatContext);
  const { mode } = useChartColors();
  if (name === "") return null;
  return (
    <HStack aria-label="Legend of the heat map" color="fg.muted" fontSize="xs" gap={3} role="group" wrap="wrap">
      {heat === undefined ? null : (
        <HStack gap={1.5}>
          {heatText(heat.minimum, heat.unit)}
          <Box aria-hidden="true" borderRadius="sm" height="12px" style={{ background: `linear-gradient(to right, ${STEPS.map((step) => sequential(step, mode)).join(", ")})` }} width="120px" />
          {heatText(heat.maximum, heat.unit)}
        </HStack>
      )}
      <HStack gap={1.5}>
        <i aria-hidden className="dtrain-slot dtrain-slot-gap" />
        <Text>not measured: no trial measures this slot now</Text>
      </HStack>
      <Text>{WORDS[name]}</Text>
    </HStack>
  );
};
