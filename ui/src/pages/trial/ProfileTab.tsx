import { Box, Heading, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import { type Profile, type Trial } from "../../api/trial";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { bytes, count, NONE, number } from "../../format/numbers";
import { duration } from "../../format/times";
import { useData } from "../../hooks/useData";
import { OnDemand } from "./OnDemand";
import { profileRows } from "./profile";

const valueText = (value: number, unit: string): string => {
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  return `${number(value)} ${unit}`;
};

const Header = ({ names }: { names: readonly string[] }) => (
  <Table.Header>
    <Table.Row>
      {names.map((name, index) => (
        <Table.ColumnHeader key={name} textAlign={index < 2 ? undefined : "end"}>
          {name}
        </Table.ColumnHeader>
      ))}
    </Table.Row>
  </Table.Header>
);

const Timings = ({ timings }: { timings: Profile["timings"] }) => {
  const rows = useMemo(() => profileRows(timings), [timings]);
  return (
    <Box>
      <Heading mb={1} size="sm">
        Timings
      </Heading>
      <Text color="fg.muted" fontSize="sm" mb={2}>
        As measured. They overlap: train_batch contains backward.
      </Text>
      <Table.Root size="sm">
        <Header names={["Timing", "Slowest rank", "Total", "Mean", "Longest", "Count"]} />
        <Table.Body>
          {rows.map((row) => (
            <Table.Row key={row.name}>
              <Table.Cell overflowWrap="anywhere">{row.name}</Table.Cell>
              <Table.Cell>{row.slowest === null ? "" : `rank ${row.slowest}`}</Table.Cell>
              <Table.Cell textAlign="end">{row.total_s === null ? NONE : duration(row.total_s)}</Table.Cell>
              <Table.Cell textAlign="end">{duration(row.mean_s)}</Table.Cell>
              <Table.Cell textAlign="end">{duration(row.max_s)}</Table.Cell>
              <Table.Cell textAlign="end">{count(row.count)}</Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
};

const System = ({ system }: { system: Profile["system"] }) => (
  <Box>
    <Heading mb={2} size="sm">
      System metrics
    </Heading>
    <Table.Root size="sm">
      <Header names={["Metric", "Host, device", "Smallest", "Mean", "Largest", "Samples"]} />
      <Table.Body>
        {system.map(({ host, device, metric, unit, minimum, mean, maximum, count: samples }) => (
          <Table.Row key={`${host} ${device ?? ""} ${metric}`}>
            <Table.Cell overflowWrap="anywhere">{metric}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">{device === null ? host : `${host}, ${device}`}</Table.Cell>
            <Table.Cell textAlign="end">{valueText(minimum, unit)}</Table.Cell>
            <Table.Cell textAlign="end">{valueText(mean, unit)}</Table.Cell>
            <Table.Cell textAlign="end">{valueText(maximum, unit)}</Table.Cell>
            <Table.Cell textAlign="end">{count(samples)}</Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

const Summary = ({ trial }: { trial: Trial }) => {
  const { data, error, loading, refresh } = useData<Profile>(`trials/${trial.trial_id}/profile`, { everyMs: null });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Profile" />;
  if (data.timings.length === 0 && data.system.length === 0) return <EmptyState text="It needs timings or system metrics of a trial that has trained." title="There is no profile yet." />;
  return (
    <Stack gap={4}>
      {data.timings.length === 0 ? null : <Timings timings={data.timings} />}
      {data.system.length === 0 ? null : <System system={data.system} />}
    </Stack>
  );
};

/** Stacks and traces on request, and a summary of timings and system metrics of the latest attempt. */
export const ProfileTab = ({ trial }: { trial: Trial }) => (
  <Stack gap={5}>
    <OnDemand trial={trial} />
    <Summary trial={trial} />
  </Stack>
);
