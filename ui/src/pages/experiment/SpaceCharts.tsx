import { Button, HStack } from "@chakra-ui/react";
import { type ReactNode, useMemo } from "react";

import { type Hyperparameters } from "../../api/charts";
import { ChartFrame } from "../../charts/ChartFrame";
import { type Dimension, dimensionOf } from "../../charts/dimensions";
import { PointChart } from "../../charts/PointChart";
import { jitter, type PointSet } from "../../charts/points";
import { placeOf } from "../../charts/scales";
import { NamePicker } from "../../components/NamePicker";
import { axisOf, bestLine, bestSoFar } from "./space";

interface Common {
  data: Hyperparameters;
  metric: string;
  shades: Float32Array;
  marks: Uint8Array;
  describe: (index: number) => ReactNode;
  onPick: (index: number) => void;
}

const NO_LEGEND: readonly [] = [];

/** Width of the cloud of points of one category, as a share of its place on the axis. */
const CLOUD = 0.6;

/** Places of the x axis; points of one category are spread. */
const spread = (dimension: Dimension, numbers: readonly number[]): Float32Array => {
  const wide = dimension.scale === null ? CLOUD / Math.max(1, dimension.categories.length) : 0;
  return dimension.places.map((place, index) => place + (place < 0 ? 0 : wide * jitter(numbers[index] ?? 0)));
};

interface ScatterProps extends Common {
  name: string;
  flip: readonly string[];
  onChoose: (name: string) => void;
  onFlip: (name: string) => void;
}

/** The metric over one hyperparameter. */
export const ScatterChart = ({ data, metric, shades, marks, describe, onPick, name, flip, onChoose, onFlip }: ScatterProps) => {
  const x = useMemo(() => axisOf(data, name, flip), [data, name, flip]);
  const y = useMemo(() => dimensionOf(metric, data.metric, false), [data, metric]);
  const points = useMemo<PointSet>(() => ({ xs: spread(x, data.number), ys: y.places, shades, marks }), [x, y, data, shades, marks]);
  const names = data.names.filter(({ kind }) => kind !== "const").map((item) => item.name);
  return (
    <ChartFrame
      controls={
        <HStack gap={2}>
          <NamePicker key={name} label="Hyperparameter of the x axis" onChange={onChoose} options={names} value={name} />
          {x.scale === null ? null : (
            <Button aria-pressed={x.scale.log} bg={x.scale.log ? "bg.emphasized" : undefined} onClick={() => onFlip(name)} size="xs" variant="outline">
              log
            </Button>
          )}
        </HStack>
      }
      notes={[x.absent > 0 && `${x.absent} trials have no value.`, y.absent > 0 && `${y.absent} trials have no metric.`]}
      image={NO_LEGEND}
      title={`${metric} over ${name}`}
    >
      <PointChart describe={describe} label={`${metric} over ${name}`} onPick={onPick} points={points} x={x} y={y} />
    </ChartFrame>
  );
};

/** The metric over the numbers of the trials, with the best one so far. */
export const HistoryChart = ({ data, metric, shades, marks, describe, onPick, smallerIsBetter }: Common & { smallerIsBetter: boolean }) => {
  const x = useMemo(() => dimensionOf("number of the trial", data.number, false), [data]);
  const y = useMemo(() => dimensionOf(metric, data.metric, false), [data, metric]);
  const points = useMemo<PointSet>(() => ({ xs: x.places, ys: y.places, shades, marks }), [x, y, shades, marks]);
  const line = useMemo(() => {
    const [scaleX, scaleY] = [x.scale, y.scale];
    if (scaleX === null || scaleY === null) return null;
    return bestLine(bestSoFar(data.number, data.metric, smallerIsBetter), (value) => placeOf(scaleX, value), (value) => placeOf(scaleY, value));
  }, [data, x, y, smallerIsBetter]);
  return (
    <ChartFrame image={NO_LEGEND} notes={["The line is the best value so far, in the order of the trials."]} title={`${metric} by trial`}>
      <PointChart describe={describe} label={`${metric} of each trial, in the order of the trials`} line={line} onPick={onPick} points={points} x={x} y={y} />
    </ChartFrame>
  );
};
