import { Box, Flex, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { isOpen } from "../../actions/experiments";
import { type Rungs } from "../../api/charts";
import { type Experiment } from "../../api/experiment";
import { paths } from "../../app/paths";
import { ChartFrame } from "../../charts/ChartFrame";
import { RungChart } from "../../charts/RungChart";
import { RungLegend } from "../../charts/RungLegend";
import { bestFirst, fateOf, fatesOf, type Reported } from "../../charts/rungLayout";
import { distanceText, FATE_TEXTS } from "../../charts/RungNote";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { Segments } from "../../components/Segments";
import { Stale } from "../../components/Stale";
import { count, NONE, number, plural } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";

const PLACES = [
  { value: "value", text: "By value" },
  { value: "order", text: "By order" },
] as const;

const USUAL = { place: "value" };

/** Rows of the table of one rung. */
const MOST = 200;

type Bracket = Rungs["brackets"][number];

const BracketTable = ({ bracket, data }: { bracket: Bracket; data: Rungs }) => (
  <Box aria-label={`Reports of bracket ${bracket.bracket}`} maxH="28rem" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          {["Rung", "Trial", data.metric ?? "Metric", "Place", "Result", "Distance"].map((name) => (
            <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {bracket.rungs.flatMap((rung) =>
          bestFirst(rung.entries, data.smaller_is_better)
            .slice(0, MOST)
            .map((entry) => (
              <Table.Row key={`${rung.rung} ${entry.trial_id}`}>
                <Table.Cell>{rung.rung}</Table.Cell>
                <Table.Cell>
                  <PageLink to={paths.trial(entry.trial_id)}>Trial {entry.trial_id}</PageLink>
                </Table.Cell>
                <Table.Cell>{number(entry.metric)}</Table.Cell>
                <Table.Cell>{`${entry.rank} of ${entry.of}`}</Table.Cell>
                <Table.Cell>{FATE_TEXTS[fateOf(entry)]}</Table.Cell>
                <Table.Cell>{distanceText(entry) ?? NONE}</Table.Cell>
              </Table.Row>
            )),
        )}
      </Table.Body>
    </Table.Root>
  </Box>
);

/** Words of the counts; the legend has the long names of the fates. */
const countsText = (rung: Reported) => [`${count(rung.reported)} reported`, ...fatesOf(rung).map(([fate, times]) => `${count(times)} ${fate === "left" ? "cleared" : fate}`)].join(", ");

const Counts = ({ bracket, units }: { bracket: Bracket; units: string }) => (
  <Flex columnGap={6} fontSize="sm" mb={1} rowGap={1} wrap="wrap">
    {bracket.rungs.map((rung) => (
      <Text key={rung.rung}>
        <Box as="span" fontWeight="bold">
          Rung {rung.rung}
        </Box>{" "}
        ({plural(rung.units, units.replace(/s$/, ""))}): {countsText(rung)}
        {rung.cut_off === null ? "" : `, cut-off ${number(rung.cut_off)}`}
      </Text>
    ))}
  </Flex>
);

/** Rungs of the search: which trial was stopped where, against which reports, and by how much. */
export const RungsTab = ({ experiment }: { experiment: Experiment }) => {
  const [view, setView] = useUrlState(USUAL);
  const navigate = useNavigate();
  const { data, error, loading, stale, refresh } = useData<Rungs>(`experiments/${experiment.experiment_id}/rungs`, { everyMs: isOpen(experiment) ? LIVE_MS : null });
  const brackets = useMemo(() => data?.brackets.filter(({ rungs }) => rungs.length > 0) ?? [], [data]);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Rungs" />;
  if (brackets.length === 0) {
    return <EmptyState text="The searchers async_halving and adaptive_asha compare trials at rungs, and stop the worse ones early." title="This experiment has no rungs." />;
  }
  const by = view.place === "order" ? "order" : "value";
  return (
    <Stale notice={error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Rungs" />} stale={stale}>
      <Stack gap={3}>
        <HStack columnGap={5} fontSize="sm" rowGap={1} wrap="wrap">
          <Segments label="Place of the reports" onChange={(place) => setView({ place })} options={PLACES} value={by} />
          <Text>
            At each rung about 1 of {data.divisor} reports continues: {data.metric ?? "the metric"}, {data.smaller_is_better ? "smaller" : "larger"} is better.
          </Text>
          <RungLegend />
        </HStack>
        {brackets.map((bracket) => (
          <ChartFrame image={[]} key={bracket.bracket} table={() => <BracketTable bracket={bracket} data={data} />} title={brackets.length > 1 ? `Bracket ${bracket.bracket}` : "Rungs"}>
            <Counts bracket={bracket} units={data.units} />
            <RungChart
              bracket={bracket.bracket}
              by={by}
              metric={data.metric ?? "metric"}
              onPick={(id) => void navigate(paths.trial(id))}
              rungs={bracket.rungs}
              smallerIsBetter={data.smaller_is_better}
              unit={data.units}
            />
          </ChartFrame>
        ))}
      </Stack>
    </Stale>
  );
};
