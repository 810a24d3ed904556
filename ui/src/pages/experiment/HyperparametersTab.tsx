import { Box, Button, Flex, Grid, HStack, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { isOpen } from "../../actions/experiments";
import { type Hyperparameters } from "../../api/charts";
import { cached } from "../../api/cache";
import { withQuery } from "../../api/client";
import { type Experiment } from "../../api/experiment";
import { paths } from "../../app/paths";
import { asText, brushed, type Brushes, fromText, reordered, selected } from "../../charts/brushes";
import { ChartFrame } from "../../charts/ChartFrame";
import { ImportanceBars } from "../../charts/ImportanceBars";
import { ParallelCoordinates } from "../../charts/ParallelCoordinates";
import { goodness } from "../../charts/ranks";
import { ShadeLegend } from "../../charts/ShadeLegend";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { NamePicker } from "../../components/NamePicker";
import { Stale } from "../../components/Stale";
import { ColumnsMenu } from "../../components/table/ColumnsMenu";
import { count, number } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { PairSection } from "./PairSection";
import { SelectedTrials } from "./SelectedTrials";
import { HistoryChart, ScatterChart } from "./SpaceCharts";
import { axesOf, metricAxis, usualAxes, valuesOf } from "./space";

const USUAL = { by: "", axes: [] as readonly string[], flip: [] as readonly string[], range: [] as readonly string[], scatter: "" };

/** Name of the metric's axis in addresses. */
const METRIC = " metric";

/** Period of new results, in milliseconds. Trials end rarely compared with their reports. */
const EVERY_MS = 5_000;

interface ShownProps {
  experiment: Experiment;
  data: Hyperparameters;
  metric: string;
}

const Shown = ({ experiment, data, metric }: ShownProps) => {
  const [view, setView] = useUrlState(USUAL);
  const navigate = useNavigate();
  const usual = useMemo(() => usualAxes(data), [data]);
  const varied = useMemo(() => usualAxes(data, Infinity), [data]);
  const names = view.axes.length > 0 ? view.axes : usual;
  const brushes = useMemo(() => fromText(view.range), [view.range]);
  const dimensions = useMemo(
    () => [...axesOf(data, view.axes.length > 0 ? view.axes : usual, view.flip), metricAxis(data, metric, view.flip.includes(METRIC))],
    [data, view.axes, usual, view.flip, metric],
  );
  const better = experiment.smaller_is_better;
  const shades = useMemo(() => goodness(data.metric, better), [data, better]);
  const marks = useMemo(() => selected(dimensions, brushes, data.trial_id.length), [dimensions, brushes, data]);
  const chosen = Object.hasOwn(data.columns, view.scatter) ? view.scatter : (names[0] ?? null);
  const setBrushes = (next: Brushes) => setView({ range: asText(next) });
  const open = (index: number) => {
    const id = data.trial_id[index];
    if (id !== undefined) void navigate(paths.trial(id));
  };
  const describe = (index: number) => (
    <>
      <Box fontWeight="bold">
        Trial {data.trial_id[index]} (number {data.number[index]}): {metric} {number(data.metric[index])}
      </Box>
      {valuesOf(data, index, names).map(({ name, text }) => (
        <Box key={name}>
          {name} {text}
        </Box>
      ))}
    </>
  );
  const keyOf = (name: string) => (name === metric ? METRIC : name);
  const flip = (name: string) => setView({ flip: view.flip.includes(name) ? view.flip.filter((item) => item !== name) : [...view.flip, name] });
  const hasBrush = Object.keys(brushes).length > 0;
  return (
    <Stack gap={3}>
      <ChartFrame
        image={[]}
        controls={
          <HStack gap={3} wrap="wrap">
            <ShadeLegend />
            {hasBrush ? (
              <Button onClick={() => setBrushes({})} size="xs" variant="outline">
                Remove the ranges
              </Button>
            ) : null}
            <ColumnsMenu
              chosen={names}
              columns={data.names.filter(({ kind }) => kind !== "const").map(({ name }) => ({ id: name, header: name }))}
              onChange={(axes) => setView({ axes: [...names.filter((name) => axes.includes(name)), ...axes.filter((name) => !names.includes(name))] })}
            />
          </HStack>
        }
        notes={["Drag on an axis to select a range, click on it to remove the range. The menu of an axis moves it, and selects a range with the keyboard."]}
        table={() => <SelectedTrials data={data} marks={marks} metric={metric} names={names} smallerIsBetter={better} />}
        title={`${count(data.trial_id.length)} trials by ${metric}`}
      >
        <ParallelCoordinates
          brushes={brushes}
          describe={describe}
          dimensions={dimensions}
          marks={marks}
          onBrush={setBrushes}
          onHide={(name) => setView({ axes: names.filter((item) => item !== name), range: asText(brushed(brushes, name, 0, 0)) })}
          onLog={(name) => flip(keyOf(name))}
          onMove={(name, to) => setView({ axes: reordered(names, name, to) })}
          onPick={open}
          shades={shades}
        />
      </ChartFrame>
      {hasBrush ? <SelectedTrials data={data} marks={marks} metric={metric} names={names} smallerIsBetter={better} /> : null}
      <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", lg: "minmax(0, 1fr) minmax(0, 1.4fr)", "2xl": "minmax(0, 0.8fr) minmax(0, 1.2fr) minmax(0, 1.2fr)" }}>
        <ChartFrame image={data.importance.length > 0 ? [] : undefined} notes={[data.importance.length > 0 && data.importance_note]} title={`Importance for ${metric}`}>
          {data.importance.length > 0 ? <ImportanceBars chosen={chosen} onChoose={(scatter) => setView({ scatter })} rows={data.importance} /> : <Text fontSize="sm">{data.importance_note}</Text>}
        </ChartFrame>
        {chosen === null ? null : (
          <ScatterChart data={data} describe={describe} flip={view.flip} marks={marks} metric={metric} name={chosen} onChoose={(scatter) => setView({ scatter })} onFlip={flip} onPick={open} shades={shades} />
        )}
        <PairSection data={data} describe={describe} flip={view.flip} marks={marks} metric={metric} names={varied} onPick={open} smallerIsBetter={better} />
        <HistoryChart data={data} describe={describe} marks={marks} metric={metric} onPick={open} shades={shades} smallerIsBetter={better} />
      </Grid>
    </Stack>
  );
};

/** Return the path of the hyperparameters of an experiment, by a metric or by the searcher's. */
export const hyperparametersPath = (path: string, by: string): string => withQuery(`${path}/hyperparameters`, { metric: by });

/** Hyperparameters of all trials and their effect on a metric. */
export const HyperparametersTab = ({ experiment }: { experiment: Experiment }) => {
  const [view, setView] = useUrlState(USUAL);
  const names = useMemo(() => [...new Set(experiment.metrics.filter(({ group }) => group === "validation").map(({ name }) => name))], [experiment.metrics]);
  const metric = view.by !== "" ? view.by : (experiment.metric ?? names[0] ?? "");
  const path = hyperparametersPath(`experiments/${experiment.experiment_id}`, view.by);
  const isPending = cached<Hyperparameters>(path)?.data.is_importance_pending ?? true;
  const everyMs = isPending ? LIVE_MS : isOpen(experiment) ? EVERY_MS : null;
  const { data, error, loading, stale, refresh } = useData<Hyperparameters>(path, { everyMs, keepPrevious: true });
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Hyperparameters" />;
  if (data.trial_id.length === 0 || data.names.every(({ kind }) => kind === "const")) {
    return (
      <EmptyState
        text={data.trial_id.length === 0 ? "They appear when the first trial is planned." : "All trials have the same values. A searcher varies those that the configuration describes as a range."}
        title="There are no hyperparameters to compare."
      />
    );
  }
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Hyperparameters" />} stale={stale}>
      {names.length > 1 ? (
        <Flex align="center" gap={2} mb={3}>
          <Text fontSize="sm">Metric</Text>
          <NamePicker key={metric} label="Metric" onChange={(by) => setView({ by: by === experiment.metric ? "" : by })} options={names} value={metric} />
        </Flex>
      ) : null}
      <Shown data={data} experiment={experiment} metric={metric} />
    </Stale>
  );
};
