import { Box, Heading, Stack, Table } from "@chakra-ui/react";

import { type Profile, type ProfileRow, type Trial } from "../../api/trial";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { bytes, count, NONE, number, percent } from "../../format/numbers";
import { duration } from "../../format/times";
import { useData } from "../../hooks/useData";

const valueText = (value: number | null, unit: string): string => {
  if (value === null) return NONE;
  if (unit === "s") return duration(value);
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  return `${number(value)} ${unit}`;
};

const Rows = ({ title, rows, hasShare }: { title: string; rows: readonly ProfileRow[]; hasShare: boolean }) => {
  const names = [hasShare ? "Section" : "Metric", hasShare ? "Share" : "Host", "Mean", "Smallest", "Largest", "Count"];
  return (
    <Box>
      <Heading mb={2} size="sm">
        {title}
      </Heading>
      <Table.Root size="sm">
        <Table.Header>
          <Table.Row>
            {names.map((name) => (
              <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map((row, index) => (
            <Table.Row key={`${row.name} ${row.host ?? ""} ${index}`}>
              <Table.Cell overflowWrap="anywhere">{row.name}</Table.Cell>
              <Table.Cell>{hasShare ? percent(row.share, 1) : (row.host ?? "")}</Table.Cell>
              <Table.Cell>{valueText(row.mean, row.unit)}</Table.Cell>
              <Table.Cell>{valueText(row.minimum, row.unit)}</Table.Cell>
              <Table.Cell>{valueText(row.maximum, row.unit)}</Table.Cell>
              <Table.Cell>{count(row.count)}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
};

/** Summary of timings and system metrics over the whole trial. */
export const ProfileTab = ({ trial }: { trial: Trial }) => {
  const { data, error, loading, refresh } = useData<Profile>(`trials/${trial.trial_id}/profile`, { everyMs: null });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Profile" />;
  if (data.timings.length === 0 && data.system.length === 0) return <EmptyState text="It needs timings or system metrics of a trial that has trained." title="There is no profile yet." />;
  return (
    <Stack gap={4}>
      {data.timings.length === 0 ? null : <Rows hasShare rows={data.timings} title="Timed sections" />}
      {data.system.length === 0 ? null : <Rows hasShare={false} rows={data.system} title="System metrics" />}
    </Stack>
  );
};
