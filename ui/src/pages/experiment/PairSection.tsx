import { Box, HStack, Table } from "@chakra-ui/react";
import { type ReactNode, useMemo } from "react";

import { type Hyperparameters } from "../../api/charts";
import { paths } from "../../app/paths";
import { ChartFrame } from "../../charts/ChartFrame";
import { type Mode, sequential } from "../../charts/palette";
import { PointChart, type Under } from "../../charts/PointChart";
import { type PointSet } from "../../charts/points";
import { goodnessOf } from "../../charts/ranks";
import { ShadeLegend } from "../../charts/ShadeLegend";
import { ranksOf, type Surface, SURFACE_MARGIN, surfaceAt, surfaceOf } from "../../charts/surface";
import { PageLink } from "../../components/Links";
import { NamePicker } from "../../components/NamePicker";
import { Segments } from "../../components/Segments";
import { number, plural } from "../../format/numbers";
import { useUrlState } from "../../hooks/useUrlState";
import { axisOf, bestOf, valuesOf } from "./space";

const USUAL = { pair: [] as readonly string[], draw: "contour" };

const DRAWN = [
  { value: "contour", text: "Contour" },
  { value: "rank", text: "Rank" },
] as const;

/** Steps of the colours of a contour, and points of its picture along an axis. */
const BANDS = 12;
const PICTURE = 192;

/** Rows of the table. */
const MOST = 100;

const NO_LEGEND: readonly [] = [];

const pictureOf = (surface: Surface, shadeOf: (value: number) => number, mode: Mode): HTMLCanvasElement | null => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [PICTURE, PICTURE];
  const ctx = canvas.getContext("2d");
  if (ctx === null) return null;
  const place = (at: number) => ((at + 0.5) / PICTURE) * (1 + 2 * SURFACE_MARGIN) - SURFACE_MARGIN;
  const bandAt = (column: number, row: number) => Math.min(BANDS - 1, Math.floor(shadeOf(surfaceAt(surface, place(column), place(row))) * BANDS));
  for (let row = 0; row < PICTURE; row += 1) {
    // Neighbours of one colour are painted together.
    for (let from = 0, to = 1; from < PICTURE; from = to, to += 1) {
      const band = bandAt(from, row);
      while (to < PICTURE && bandAt(to, row) === band) to += 1;
      ctx.fillStyle = sequential((band + 0.5) / BANDS, mode);
      ctx.fillRect(from, PICTURE - 1 - row, to - from, 1);
    }
  }
  return canvas;
};

/** Return the paint of a surface. Its picture is made once per colour mode. */
const underOf = (surface: Surface, shadeOf: (value: number) => number): Under => {
  const made = new Map<Mode, HTMLCanvasElement | null>();
  return (ctx, area, { mode }) => {
    if (!made.has(mode)) made.set(mode, pictureOf(surface, shadeOf, mode));
    const picture = made.get(mode);
    if (picture === null || picture === undefined) return;
    const [left, top] = [area.toX(-SURFACE_MARGIN), area.toY(1 + SURFACE_MARGIN)];
    ctx.drawImage(picture, left, top, area.toX(1 + SURFACE_MARGIN) - left, area.toY(-SURFACE_MARGIN) - top);
  };
};

/** Return the two hyperparameters of the chart: those of the address, otherwise the first two. */
export const pairOf = (names: readonly string[], chosen: readonly string[]): [string, string] | null => {
  const x = names.find((name) => name === chosen[0]) ?? names[0];
  const y = names.find((name) => name === chosen[1] && name !== x) ?? names.find((name) => name !== x);
  return x === undefined || y === undefined ? null : [x, y];
};

interface Props {
  data: Hyperparameters;
  metric: string;
  /** Hyperparameters that vary, the most important ones first. */
  names: readonly string[];
  flip: readonly string[];
  marks: Uint8Array;
  smallerIsBetter: boolean;
  describe: (index: number) => ReactNode;
  onPick: (index: number) => void;
}

const Rows = ({ data, metric, pair, ranks, smallerIsBetter }: Pick<Props, "data" | "metric" | "smallerIsBetter"> & { pair: readonly string[]; ranks: Float32Array }) => {
  const best = bestOf(data.metric, new Uint8Array(data.metric.length).fill(1), smallerIsBetter, MOST);
  const rankOf = (index: number) => (Number.isNaN(ranks[index]) ? null : ranks[index]);
  return (
    <Box aria-label={`Trials by ${pair.join(" and ")}`} maxH="20rem" overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            {["Trial", ...pair, metric, "Rank"].map((name) => (
              <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {best.map((index) => (
            <Table.Row key={data.trial_id[index]}>
              <Table.Cell>
                <PageLink to={paths.trial(data.trial_id[index] ?? 0)}>Trial {data.trial_id[index]}</PageLink>
              </Table.Cell>
              {valuesOf(data, index, pair).map(({ name, text }) => (
                <Table.Cell key={name}>{text}</Table.Cell>
              ))}
              <Table.Cell>{number(data.metric[index])}</Table.Cell>
              <Table.Cell>{number(rankOf(index), 2)}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
};

/** A metric over two hyperparameters: interpolated between the trials, or the rank of each trial. */
export const PairSection = ({ data, metric, names, flip, marks, smallerIsBetter, describe, onPick }: Props) => {
  const [view, setView] = useUrlState(USUAL);
  const pair = pairOf(names, view.pair);
  const [nameX, nameY] = pair ?? ["", ""];
  const draw = view.draw === "rank" ? "rank" : "contour";
  const x = useMemo(() => axisOf(data, nameX, flip), [data, nameX, flip]);
  const y = useMemo(() => axisOf(data, nameY, flip), [data, nameY, flip]);
  const ranks = useMemo(() => ranksOf(data.metric, smallerIsBetter), [data, smallerIsBetter]);
  const surface = useMemo(() => (draw === "contour" ? surfaceOf(x.places, y.places, data.metric, smallerIsBetter) : null), [draw, x, y, data, smallerIsBetter]);
  const shadeOf = useMemo(() => goodnessOf(data.metric, smallerIsBetter), [data, smallerIsBetter]);
  const under = useMemo(() => (surface === null ? null : underOf(surface, shadeOf)), [surface, shadeOf]);
  const shades = useMemo(() => (draw === "rank" ? ranks : Float32Array.from(data.metric, shadeOf)), [draw, ranks, data, shadeOf]);
  const points = useMemo<PointSet>(() => ({ xs: x.places, ys: y.places, shades, marks }), [x, y, shades, marks]);
  if (pair === null) return null;
  const drawn = data.metric.filter((value, index) => value !== null && (x.places[index] ?? -1) >= 0 && (y.places[index] ?? -1) >= 0).length;
  const title = draw === "contour" ? `${metric} over ${nameX} and ${nameY}` : `Rank by ${metric} over ${nameX} and ${nameY}`;
  return (
    <ChartFrame
      controls={
        <HStack gap={2} wrap="wrap">
          <ShadeLegend />
          <Segments label="Drawn as" onChange={(next) => setView({ draw: next })} options={DRAWN} value={draw} />
          <NamePicker key={`x ${nameX}`} label="Hyperparameter from left to right" onChange={(next) => setView({ pair: [next, next === nameY ? nameX : nameY] })} options={names} value={nameX} />
          <NamePicker key={`y ${nameY}`} label="Hyperparameter from bottom to top" onChange={(next) => setView({ pair: [next === nameX ? nameY : nameX, next] })} options={names} value={nameY} />
        </HStack>
      }
      image={NO_LEGEND}
      notes={[
        draw === "rank" && `A colour is the place of a trial among ${plural(drawn, "trial")}, whatever the distances of their metrics.`,
        draw === "contour" && (surface === null ? "A contour needs trials that differ in both hyperparameters." : `Interpolated from ${plural(drawn, "trial")}. Far from a point, the colour is a guess.`),
        drawn < data.metric.length && `${plural(data.metric.length - drawn, "trial")} without a metric or one of the values.`,
      ]}
      table={() => <Rows data={data} metric={metric} pair={pair} ranks={ranks} smallerIsBetter={smallerIsBetter} />}
      title={title}
    >
      <PointChart describe={describe} label={title} onPick={onPick} points={points} under={under} x={x} y={y} />
    </ChartFrame>
  );
};
