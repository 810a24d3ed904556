import { Box, Heading, Table, Text } from "@chakra-ui/react";

import { type ResultPreview, type Shards } from "../../api/trial";
import { ErrorNotice } from "../../components/ErrorNotice";
import { count, plural } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { visible } from "../../lib/visible";

const Rows = ({ results }: { results: ResultPreview }) => (
  <Box aria-label="First results" maxH="22rem" overflow="auto" role="region" tabIndex={0}>
    <Table.Root size="sm" stickyHeader>
      <Table.Header>
        <Table.Row>
          {results.columns.map(({ name, type }, index) => (
            <Table.ColumnHeader key={`${name} ${index}`} whiteSpace="nowrap">
              <bdi>{visible(name)}</bdi>
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
              <Table.Cell color={value === null ? "fg.muted" : undefined} key={index} maxW="24rem" overflow="hidden" textOverflow="ellipsis" title={value === null ? undefined : visible(value)} whiteSpace="nowrap">
                {value === null ? "null" : <bdi>{visible(value)}</bdi>}
              </Table.Cell>
            ))}
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

const BadRows = ({ results }: { results: ResultPreview }) => (
  <Box mb={3}>
    <Heading as="h2" mb={1} size="sm">
      Bad rows
    </Heading>
    <Text color="fg.muted" fontSize="xs" mb={1}>
      The first ones of each shard. The manifest of the results names more.
    </Text>
    <Box aria-label="Bad rows" maxH="22rem" overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            {["Shard", "Row", "Error"].map((name) => (
              <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {results.bad_rows.map(({ shard, row, name, error }) => (
            <Table.Row key={`${shard} ${row}`}>
              <Table.Cell verticalAlign="top">{shard}</Table.Cell>
              <Table.Cell overflowWrap="anywhere" verticalAlign="top">
                <bdi>{visible(name)}</bdi>
                <Text color="fg.muted" fontSize="xs">
                  row id {row}
                </Text>
              </Table.Cell>
              <Table.Cell overflowWrap="anywhere" verticalAlign="top" whiteSpace="pre-wrap">
                <bdi>{visible(error)}</bdi>
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  </Box>
);

/** First rows of the results as the ranks reported them, without a rank's own types. */
export const ResultsPreview = ({ isLive, shards, trialId }: { isLive: boolean; shards: Shards; trialId: number }) => {
  const path = shards.done === 0 ? null : `trials/${trialId}/results`;
  const { data, error, refresh } = useData<ResultPreview>(path, { everyMs: isLive ? LIVE_MS : null });
  if (error?.status === 403) return <Text color="fg.muted">The first results are shown to users who may read the task logs of the DAG.</Text>;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="First results" />;
  const badRows = data.bad_rows.length === 0 ? null : <BadRows results={data} />;
  if (data.columns.length === 0) return badRows;
  const more = data.columns_in_all - data.columns.length;
  return (
    <Box>
      {badRows}
      <Heading as="h2" mb={1} size="sm">
        First results
      </Heading>
      <Text color="fg.muted" fontSize="xs" mb={1}>
        The first {plural(data.rows.length, "row")} of shard {count(data.shard)}, <bdi>{visible(data.label)}</bdi>. Long values are cut.
        {more > 0 ? ` ${plural(more, "more column")} in the results.` : ""}
      </Text>
      <Rows results={data} />
    </Box>
  );
};
