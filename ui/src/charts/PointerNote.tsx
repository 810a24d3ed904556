import { Box } from "@chakra-ui/react";
import { type ReactNode, useLayoutEffect, useRef, useState } from "react";

interface Props {
  /** Place of the pointer within the chart, in pixels. */
  left: number;
  /** Width of the chart; the note is on the side with more space. */
  width: number;
  children: ReactNode;
}

const NOTE = {
  bg: "bg.panel", borderColor: "border.emphasized", borderRadius: "sm", borderWidth: 1, boxShadow: "md", "data-testid": "chart-tooltip", fontSize: "xs",
  maxW: "min(26rem, 60%)", opacity: 0.97, overflowWrap: "anywhere", pointerEvents: "none", position: "absolute", px: 2, py: 1, zIndex: "docked",
} as const;

const side = (left: number, width: number) => (left > width / 2 ? { right: width - left + 12 } : { left: left + 12 });

/** Facts about the thing under the pointer. */
export const PointerNote = ({ left, top, width, children }: Props & { top: number }) => (
  <Box {...NOTE} style={{ top: Math.max(0, top), ...side(left, width) }}>
    {children}
  </Box>
);

/** Pixels by which a note below a chart covers the name of its axis. */
const ON_AXIS_PX = 16;

/** Facts about the curves at the pointer: below the chart, or above it where the window has more room. */
export const NoteBelow = ({ left, width, children }: Props) => {
  const note = useRef<HTMLDivElement>(null);
  const [isAbove, setAbove] = useState(false);
  useLayoutEffect(() => {
    const chart = note.current?.parentElement?.getBoundingClientRect();
    if (chart === undefined || note.current === null) return;
    const below = window.innerHeight - chart.bottom + ON_AXIS_PX;
    setAbove(note.current.offsetHeight > below && chart.top > below);
  }, [left, width, children]);
  return (
    <Box {...NOTE} ref={note} style={{ ...(isAbove ? { bottom: "100%" } : { top: `calc(100% - ${ON_AXIS_PX}px)` }), ...side(left, width) }}>
      {children}
    </Box>
  );
};
