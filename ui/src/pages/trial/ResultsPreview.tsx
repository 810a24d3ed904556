import { Box, Heading, Table, Text } from "@chakra-ui/react";

import { type ResultPreview, type Shards } from "../../api/trial";
import { ErrorNotice } from "../../components/ErrorNotice";
import { count, plural } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";

const Rows = ({ results }: { results: ResultPreview }) => (
  <Box aria-label="First results" maxH="22rem" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          {results.columns.map(({ name, type }, index) => (
            <Table.ColumnHeader key={`${name} ${index}`} title={type} whiteSpace="nowrap">
              <bdi>{name}</bdi>
              <Text as="span" color="fg.muted" fontWeight="normal" ms={1.5}>
                {type}
              </Text>
            </Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {results.rows.map((row, number) => (
          <Table.Row key={number}>
            {row.map((value, index) => (
              <Table.Cell color={value === null ? "fg.muted" : undefined} key={index} maxW="24rem" overflow="hidden" textOverflow="ellipsis" title={value ?? undefined} whiteSpace="nowrap">
                {value === null ? "null" : <bdi>{value}</bdi>}
              </Table.Cell>
            ))}
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

/** First rows of the results as the ranks reported them, without a rank's own types. */
export const ResultsPreview = ({ isLive, shards, trialId }: { isLive: boolean; shards: Shards; trialId: number }) => {
  const path = shards.done === 0 ? null : `trials/${trialId}/results`;
  const { data, error, refresh } = useData<ResultPreview>(path, { everyMs: isLive ? LIVE_MS : null });
  if (error?.status === 403) return <Text color="fg.muted">The first results are shown to users who may read the task logs of the DAG.</Text>;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="First results" />;
  if (data.columns.length === 0) return null;
  const more = data.columns_in_all - data.columns.length;
  return (
    <Box>
      <Heading as="h2" mb={1} size="sm">
        First results
      </Heading>
      <Text color="fg.muted" fontSize="xs" mb={1}>
        The first {plural(data.rows.length, "row")} of shard {count(data.shard)}, <bdi>{data.label}</bdi>. Long values are cut.
        {more > 0 ? ` ${plural(more, "more column")} in the results.` : ""}
      </Text>
      <Rows results={data} />
    </Box>
  );
};
