import { Box } from "@chakra-ui/react";
import { type ReactNode } from "react";

interface Props {
  /** Place of the pointer within the chart, in pixels. */
  left: number;
  top: number;
  /** Width of the chart; the note is on the side with more space. */
  width: number;
  children: ReactNode;
}

/** Facts about the thing under the pointer. */
export const PointerNote = ({ left, top, width, children }: Props) => (
  <Box
    bg="bg.panel"
    borderColor="border.emphasized"
    borderRadius="sm"
    borderWidth={1}
    boxShadow="md"
    data-testid="chart-tooltip"
    fontSize="xs"
    maxW="min(26rem, 60%)"
    opacity={0.97}
    overflowWrap="anywhere"
    pointerEvents="none"
    position="absolute"
    px={2}
    py={1}
    style={{ top: Math.max(0, top), ...(left > width / 2 ? { right: width - left + 12 } : { left: left + 12 }) }}
    zIndex="docked"
  >
    {children}
  </Box>
);
