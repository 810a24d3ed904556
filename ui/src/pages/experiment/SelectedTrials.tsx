import { Box, Button, HStack, Table, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useNavigate } from "react-router-dom";

import { type Hyperparameters } from "../../api/charts";
import { paths } from "../../app/paths";
import { countOf } from "../../charts/brushes";
import { PageLink } from "../../components/Links";
import { StateBadge } from "../../components/StateBadge";
import { count, number } from "../../format/numbers";
import { bestOf, valuesOf } from "./space";
import { MOST_COMPARED } from "./TrialList";

interface Props {
  data: Hyperparameters;
  marks: Uint8Array;
  metric: string;
  names: readonly string[];
  smallerIsBetter: boolean;
}

/** Rows of the list. */
const MOST = 20;

/** The best of the trials within the ranges. */
export const SelectedTrials = ({ data, marks, metric, names, smallerIsBetter }: Props) => {
  const navigate = useNavigate();
  const total = useMemo(() => countOf(marks), [marks]);
  const best = useMemo(() => bestOf(data.metric, marks, smallerIsBetter, MOST), [data, marks, smallerIsBetter]);
  const compared = best.slice(0, MOST_COMPARED).map((index) => data.trial_id[index] ?? 0);
  return (
    <Box borderColor="border" borderRadius="md" borderWidth={1} p={3}>
      <HStack mb={2} wrap="wrap">
        <Text aria-live="polite" flex="1" fontSize="sm" fontWeight="bold">
          {count(total)} of {count(marks.length)} trials are within the ranges{total > MOST ? `, the best ${MOST}:` : "."}
        </Text>
        <Button disabled={compared.length < 2} onClick={() => void navigate(paths.compare(compared))} size="xs" variant="outline">
          Compare the best {Math.min(MOST_COMPARED, compared.length)}
        </Button>
      </HStack>
      {best.length === 0 ? null : (
        <Box aria-label="Trials within the ranges" maxH="18rem" overflow="auto" role="region" tabIndex={0}>
          <Table.Root size="sm" stickyHeader>
            <Table.Header>
              <Table.Row>
                <Table.ColumnHeader>Trial</Table.ColumnHeader>
                <Table.ColumnHeader>State</Table.ColumnHeader>
                <Table.ColumnHeader textAlign="end">{metric}</Table.ColumnHeader>
                {names.map((name) => (
                  <Table.ColumnHeader key={name} textAlign="end">
                    {name}
                  </Table.ColumnHeader>
                ))}
              </Table.Row>
            </Table.Header>
            <Table.Body>
              {best.map((index) => (
                <Table.Row key={data.trial_id[index]}>
                  <Table.Cell>
                    <PageLink to={paths.trial(data.trial_id[index] ?? 0)}>Trial {data.trial_id[index]}</PageLink>
                  </Table.Cell>
                  <Table.Cell>
                    <StateBadge state={data.state[index] ?? ""} />
                  </Table.Cell>
                  <Table.Cell textAlign="end">{number(data.metric[index])}</Table.Cell>
                  {valuesOf(data, index, names).map(({ name, text }) => (
                    <Table.Cell key={name} textAlign="end">
                      {text}
                    </Table.Cell>
                  ))}
                </Table.Row>
              ))}
            </Table.Body>
          </Table.Root>
        </Box>
      )}
    </Box>
  );
};
