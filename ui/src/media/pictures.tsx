import { Box, HStack, Stack, Text } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { count, number, plural } from "../format/numbers";
import { type MediaCurve, type MediaHistogram } from "./series";

const WIDTH = 320;
const HEIGHT = 160;
const LINE = "var(--chakra-colors-blue-fg)";

interface FrameProps {
  label: string;
  /** Texts at both ends of the axes. */
  low: string;
  high: string;
  axis: string;
  note: string;
  children: ReactNode;
}

const Frame = ({ label, low, high, axis, note, children }: FrameProps) => (
  <Stack gap={0.5} maxW="32rem">
    <Box borderBottomWidth={1} borderColor="border" borderStartWidth={1}>
      <svg aria-label={label} preserveAspectRatio="none" role="img" style={{ display: "block", height: HEIGHT, width: "100%" }} viewBox={`0 0 ${WIDTH} ${HEIGHT}`}>
        {children}
      </svg>
    </Box>
    <HStack color="fg.muted" fontSize="xs" fontVariantNumeric="tabular-nums" justify="space-between">
      <Text>{low}</Text>
      <Text>
        <bdi>{axis}</bdi>
      </Text>
      <Text>{high}</Text>
    </HStack>
    <Text color="fg.muted" fontSize="xs">
      <bdi>{note}</bdi>
    </Text>
  </Stack>
);

/** Bars of a histogram. */
export const HistogramPicture = ({ name, histogram: { edges, counts, left_out: leftOut } }: { name: string; histogram: MediaHistogram }) => {
  const highest = Math.max(1, ...counts);
  const width = WIDTH / counts.length;
  const all = counts.reduce((sum, value) => sum + value, 0);
  const ends = [edges[0] ?? 0, edges[edges.length - 1] ?? 0].map((edge) => number(edge));
  const note = `${plural(all, "value")}, at most ${count(highest)} in a bin${leftOut > 0 ? `, and ${count(leftOut)} that are NaN or infinite` : ""}`;
  return (
    <Frame axis="" high={ends[1] ?? ""} label={`Histogram ${name}: ${note}, from ${ends.join(" to ")}`} low={ends[0] ?? ""} note={note}>
      {counts.map((value, index) => (
        <rect fill={LINE} height={(HEIGHT * value) / highest} key={index} width={width * 0.92} x={index * width} y={HEIGHT * (1 - value / highest)}>
          <title>{`${number(edges[index] ?? 0)} to ${number(edges[index + 1] ?? 0)}: ${count(value)}`}</title>
        </rect>
      ))}
    </Frame>
  );
};

const spanOf = (values: readonly number[]): [number, number] => {
  const [low, high] = [Math.min(0, ...values), Math.max(1, ...values)];
  return [low, high];
};

/** A curve, such as precision over recall. Both axes hold at least 0 to 1. */
export const CurvePicture = ({ name, curve: { x, y, x_label: xLabel, y_label: yLabel, note } }: { name: string; curve: MediaCurve }) => {
  const [left, right] = spanOf(x);
  const [bottom, top] = spanOf(y);
  const points = x.map((value, index) => {
    const across = ((value - left) / (right - left)) * WIDTH;
    const up = HEIGHT - (((y[index] ?? 0) - bottom) / (top - bottom)) * HEIGHT;
    return `${across.toFixed(2)},${up.toFixed(2)}`;
  });
  const span = `${yLabel} ${number(bottom)} to ${number(top)}`;
  return (
    <Frame axis={`${yLabel} over ${xLabel}`} high={number(right)} label={`Curve ${name}: ${yLabel} over ${xLabel}, ${note}`} low={number(left)} note={`${note}; ${span}`}>
      <polyline fill="none" points={points.join(" ")} stroke={LINE} strokeWidth={2} vectorEffect="non-scaling-stroke" />
    </Frame>
  );
};
