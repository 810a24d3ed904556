import { Box, Button, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { type Curves, type MetricName } from "../../api/charts";
import { paths } from "../../app/paths";
import { endsInGap } from "../../charts/lines";
import { SeriesList } from "../../charts/SeriesList";
import { Icon } from "../../components/icons";
import { PageLink } from "../../components/Links";
import { NOT_FINITE, numbers, plural } from "../../format/numbers";
import { metricKey } from "../../lib/metrics";
import { shortNames } from "../../lib/shortNames";
import { bestValue, lastValue, lookOf } from "./curves";

/** Trials that a comparison takes. */
export const MOST_COMPARED = 8;

/** Return a list with an item added, or removed if it is in it. */
export const toggled = (items: readonly string[], item: string): string[] => (items.includes(item) ? items.filter((other) => other !== item) : [...items, item]);

interface Props {
  data: Curves | undefined;
  metric: MetricName;
  /** Whether smaller values of the metric are better; null: not known. */
  smallerIsBetter: boolean | null;
  mark: readonly string[];
  onMark: (mark: readonly string[]) => void;
  onFocus: (id: string | null) => void;
}

/** A link to the trial of a curve. */
export const OpenLink = ({ id, name }: { id: number; name: string }) => (
  <PageLink title={`Open ${name}`} to={paths.trial(id)}>
    <Icon name="external" />
    <Box as="span" srOnly>
      Open {name}
    </Box>
  </PageLink>
);

const BestMark = () => (
  <Box color="green.fg" flexShrink={0} fontSize="xs" fontWeight="bold">
    best
  </Box>
);

/** Trials whose curves are shown, with their best and last values. Marked ones can be compared. */
export const TrialList = ({ data, metric, smallerIsBetter, mark, onMark, onFocus }: Props) => {
  const navigate = useNavigate();
  const marked = useMemo(() => new Set(mark), [mark]);
  const short = useMemo(() => shortNames((data?.series ?? []).map(({ trial_name }) => trial_name)), [data]);
  const items = useMemo(() => {
    const series = data?.series ?? [];
    const last = numbers(series.map(lastValue));
    const best = smallerIsBetter === null ? null : numbers(series.map((one) => bestValue(one, smallerIsBetter)));
    return series.map((one, index) => ({
      id: String(one.trial_id),
      name: one.trial_name,
      short: short.names[index] ?? one.trial_name,
      look: lookOf(one),
      values: [...(best === null ? [] : [best[index] ?? ""]), endsInGap({ ys: one.y }) ? NOT_FINITE : (last[index] ?? "")],
      mark: one.is_best ? <BestMark /> : null,
      extra: <OpenLink id={one.trial_id} name={one.trial_name} />,
    }));
  }, [data, short, smallerIsBetter]);
  return (
    <Box borderColor="border" borderRadius="md" borderWidth={1} minW={0} p={2}>
      <HStack gap={2} mb={2} minH="28px">
        <Text flex="1" fontSize="sm" fontWeight="bold" title={`Values of ${metricKey(metric)}`} truncate>
          {mark.length === 0 ? plural(items.length, "trial") : `${mark.length} marked`}
        </Text>
        {mark.length === 0 ? null : (
          <Button onClick={() => onMark([])} size="xs" variant="ghost">
            Clear
          </Button>
        )}
        <Button
          disabled={mark.length < 2 || mark.length > MOST_COMPARED}
          onClick={() => void navigate(paths.compare(mark))}
          size="xs"
          title={`Mark 2 to ${MOST_COMPARED} trials to compare them`}
          variant="outline"
        >
          Compare
        </Button>
      </HStack>
      <SeriesList heading={short.heading} columns={smallerIsBetter === null ? ["last"] : ["best", "last"]} items={items} label="Trials of the chart" marked={marked} maxHeight="420px" onFocus={onFocus} onMark={(id) => onMark(toggled(mark, id))} />
    </Box>
  );
};
