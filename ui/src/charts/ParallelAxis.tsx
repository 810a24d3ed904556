import { Box, Button, chakra, Flex, Menu, Portal } from "@chakra-ui/react";
import { type KeyboardEvent, type PointerEvent, useRef, useState } from "react";

import { Icon } from "../components/icons";
import { type Range } from "./brushes";
import { type Dimension, labelsOf, textAt } from "./dimensions";

interface Props {
  dimension: Dimension;
  left: number;
  top: number;
  height: number;
  first: boolean;
  last: boolean;
  range: Range | null;
  onBrush: (from: number, to: number) => void;
  onShift: (by: number) => void;
  onMove: (by: number) => void;
  onLog: () => void;
  onHide: () => void;
}

/** Width in which a drag begins on the axis, in pixels. */
const GRIP_PX = 22;

/** Step of the arrow keys. */
const STEP = 0.02;

const KEYS = new Map([["ArrowUp", STEP], ["ArrowDown", -STEP], ["PageUp", 5 * STEP], ["PageDown", -5 * STEP]]);

interface EndProps {
  label: string;
  text: string;
  place: number;
  height: number;
  onStep: (by: number) => void;
}

/** One end of a range, which the arrow keys move. */
const RangeEnd = ({ label, text, place, height, onStep }: EndProps) => (
  <Box
    _focusVisible={{ outline: "2px solid", outlineColor: "brand.focusRing" }}
    aria-label={label}
    aria-orientation="vertical"
    aria-valuemax={100}
    aria-valuemin={0}
    aria-valuenow={Math.round(100 * Math.min(1, Math.max(0, place)))}
    aria-valuetext={text}
    bg="brand.solid"
    height="4px"
    left="-1px"
    onKeyDown={(event: KeyboardEvent) => {
      const by = KEYS.get(event.key);
      if (by === undefined) return;
      event.preventDefault();
      onStep(by);
    }}
    position="absolute"
    role="slider"
    style={{ top: (1 - place) * height - 2 }}
    tabIndex={0}
    width={`${GRIP_PX + 2}px`}
  />
);

/** One axis with its labels, its range and its menu. */
export const ParallelAxis = ({ dimension, left, top, height, first, last, range, onBrush, onShift, onMove, onLog, onHide }: Props) => {
  const { name, scale } = dimension;
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const shift = useRef<number | null>(null);
  const placeOf = (event: PointerEvent<HTMLElement>) => 1 - (event.clientY - event.currentTarget.getBoundingClientRect().top) / height;
  const onPointerDown = (event: PointerEvent<HTMLElement>) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    const place = placeOf(event);
    if (range !== null && place > range[0] && place < range[1]) shift.current = place;
    else setDrag({ from: place, to: place });
  };
  const onPointerMove = (event: PointerEvent<HTMLElement>) => {
    if (event.buttons === 0) return;
    const place = placeOf(event);
    if (shift.current !== null) {
      onShift(place - shift.current);
      shift.current = place;
    } else if (drag !== null) setDrag({ ...drag, to: place });
  };
  const onPointerUp = () => {
    shift.current = null;
    if (drag !== null) onBrush(drag.from, drag.to);
    setDrag(null);
  };
  const shown: Range | null = drag === null ? range : [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
  return (
    <Box position="absolute" style={{ left, top }} width={0}>
      <Flex align="center" direction="column" justify="flex-end" left="-62px" minH="56px" position="absolute" bottom="6px" textAlign="center" width="124px">
        <Menu.Root lazyMount unmountOnExit>
          <Menu.Trigger asChild>
            <Button aria-label={`Axis ${name}`} fontSize="xs" gap={1} height="auto" maxW="100%" px={1} py={1} size="xs" title={name} variant="ghost" whiteSpace="normal">
              <Box as="span" lineClamp={2} overflowWrap="anywhere">
                {name}
                {scale?.log ? " (log)" : ""}
              </Box>
              <Box as="span" color="fg.muted" flexShrink={0}>
                <Icon name="chevronDown" />
              </Box>
            </Button>
          </Menu.Trigger>
          <Portal>
            <Menu.Positioner>
              <Menu.Content>
                <Menu.Item disabled={first} onClick={() => onMove(-1)} value="left">
                  Move left
                </Menu.Item>
                <Menu.Item disabled={last} onClick={() => onMove(1)} value="right">
                  Move right
                </Menu.Item>
                {scale === null ? null : (
                  <Menu.Item onClick={onLog} value="log">
                    {scale.log ? "Linear axis" : "Log axis"}
                  </Menu.Item>
                )}
                {range === null ? (
                  <Menu.Item onClick={() => onBrush(0.25, 0.75)} value="range">
                    Select a range
                  </Menu.Item>
                ) : (
                  <Menu.Item onClick={() => onBrush(0, 0)} value="clear">
                    Remove the range
                  </Menu.Item>
                )}
                <Menu.Item onClick={onHide} value="hide">
                  Hide the axis
                </Menu.Item>
              </Menu.Content>
            </Menu.Positioner>
          </Portal>
        </Menu.Root>
      </Flex>
      <chakra.div bg="border.emphasized" height={`${height}px`} left="-0.5px" pointerEvents="none" position="absolute" width="1px" />
      {labelsOf(dimension, Math.max(2, Math.floor(height / 40))).map(({ place, text }) => (
        <Box
          bg="bg/70"
          borderRadius="xs"
          color="fg"
          fontSize="2xs"
          key={`${place} ${text}`}
          left="6px"
          lineHeight="12px"
          maxW="90px"
          overflow="hidden"
          pointerEvents="none"
          position="absolute"
          px="2px"
          style={{ top: (1 - place) * height - 6 }}
          textOverflow="ellipsis"
          title={text}
          whiteSpace="nowrap"
        >
          {text}
        </Box>
      ))}
      {dimension.absent > 0 ? (
        <Box color="fg.muted" fontSize="2xs" left="6px" pointerEvents="none" position="absolute" style={{ top: 1.08 * height - 6 }} whiteSpace="nowrap">
          absent
        </Box>
      ) : null}
      <Box
        cursor="ns-resize"
        data-axis={name}
        left={`${-GRIP_PX / 2}px`}
        onClick={(event) => event.stopPropagation()}
        onPointerDown={onPointerDown}
        onPointerMove={onPointerMove}
        onPointerUp={onPointerUp}
        position="absolute"
        style={{ height: 1.12 * height }}
        top={0}
        touchAction="none"
        width={`${GRIP_PX}px`}
      >
        {shown === null ? null : (
          <Box
            bg="brand.solid/25"
            borderColor="brand.solid"
            borderWidth={1}
            pointerEvents="none"
            position="absolute"
            style={{ top: (1 - shown[1]) * height, height: Math.max(2, (shown[1] - shown[0]) * height) }}
            width="100%"
          />
        )}
        {range === null ? null : (
          <>
            <RangeEnd height={height} label={`Upper end of the range of ${name}`} onStep={(by) => onBrush(range[0], range[1] + by)} place={range[1]} text={textAt(dimension, range[1])} />
            <RangeEnd height={height} label={`Lower end of the range of ${name}`} onStep={(by) => onBrush(range[0] + by, range[1])} place={range[0]} text={textAt(dimension, range[0])} />
          </>
        )}
      </Box>
    </Box>
  );
};
