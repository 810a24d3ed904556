import { Box, Button, Heading, HStack, Stack, Table, Text } from "@chakra-ui/react";

import { apiUrl, withQuery } from "../../api/client";
import { type Checkpoint, type Download, locationOf, type Output, type Trial } from "../../api/trial";
import { CopyButton } from "../../components/CopyButton";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Icon } from "../../components/icons";
import { Loading } from "../../components/Loading";
import { Words } from "../../components/Notice";
import { Stale } from "../../components/Stale";
import { Time } from "../../components/Time";
import { bytes, count, NONE, number, type Numeric } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { ENDED } from "./words";

/** Period of new files, in milliseconds. */
const EVERY_MS = 4 * LIVE_MS;

/** Metrics of a checkpoint that are shown. */
const MOST_METRICS = 4;

const Get = ({ download, path, name }: { download: Download; path: string; name: string }) =>
  download.possible ? (
    <Button asChild size="xs" variant="outline">
      <a aria-label={`Download ${name}`} download href={apiUrl(path)}>
        <Icon name="download" /> Download
      </a>
    </Button>
  ) : (
    <Text color="fg.muted" fontSize="xs">
      <Words text={download.reason} />
    </Text>
  );

const Location = ({ location }: { location: string }) => (
  <HStack gap={1} maxW="22rem">
    <Text overflow="hidden" textOverflow="ellipsis" title={location} whiteSpace="nowrap">
      {location}
    </Text>
    <CopyButton label="Copy the location" text={location} />
  </HStack>
);

/** NaN and infinities come as their names. */
const isNumeric = (value: unknown): value is Numeric => typeof value === "number" || value === "nan" || value === "inf" || value === "-inf";

const metricsText = (metrics: Checkpoint["metrics"]): string => {
  const pairs = Object.entries(metrics).filter((pair): pair is [string, Numeric] => isNumeric(pair[1]));
  const shown = pairs.slice(0, MOST_METRICS).map(([name, value]) => `${name} ${number(value)}`).join(", ");
  return pairs.length > MOST_METRICS ? `${shown} and ${pairs.length - MOST_METRICS} more` : shown;
};

const stateOf = ({ removed_at, refused, is_best }: Checkpoint): string => (refused !== null ? `refused: ${refused}` : removed_at !== null ? "removed" : is_best ? "best" : "");

const CheckpointTable = ({ trialId, rows, isGone }: { trialId: number; rows: readonly Checkpoint[]; isGone: boolean }) => (
  <Box overflowX="auto">
    <Table.Root size="sm">
      <Table.Header>
        <Table.Row>
          {["Step", "Saved", "Attempt", "Metrics", "Size", "State", "Location", "Download"].map((name) => (
            <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
          ))}
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {[...rows].reverse().map((row) => (
          <Table.Row color={row.removed_at === null ? undefined : "fg.muted"} key={row.checkpoint_id}>
            <Table.Cell fontWeight={row.is_best ? "bold" : undefined}>{count(row.step)}</Table.Cell>
            <Table.Cell>
              <Time at={row.at} />
            </Table.Cell>
            <Table.Cell>{row.attempt}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">{metricsText(row.metrics)}</Table.Cell>
            <Table.Cell whiteSpace="nowrap">{row.size_bytes === null ? NONE : bytes(row.size_bytes)}</Table.Cell>
            <Table.Cell overflowWrap="anywhere">{stateOf(row)}</Table.Cell>
            <Table.Cell>
              {row.removed_at === null ? <Location location={locationOf(row)} /> : NONE}
            </Table.Cell>
            <Table.Cell>
              {row.removed_at !== null || isGone ? null : <Get download={row.download} name={`the checkpoint of step ${row.step}`} path={`trials/${trialId}/checkpoints/${row.checkpoint_id}/download`} />}
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  </Box>
);

const OutputTable = ({ trialId, rows, isGone }: { trialId: number; rows: readonly Output[]; isGone: boolean }) => (
  <Table.Root size="sm">
    <Table.Header>
      <Table.Row>
        {["File", "Size", "Time", "Download"].map((name) => (
          <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
        ))}
      </Table.Row>
    </Table.Header>
    <Table.Body>
      {rows.map(({ path, size_bytes, at, download }) => (
        <Table.Row key={path}>
          <Table.Cell overflowWrap="anywhere">{path}</Table.Cell>
          <Table.Cell whiteSpace="nowrap">{bytes(size_bytes)}</Table.Cell>
          <Table.Cell>
            <Time at={at} />
          </Table.Cell>
          <Table.Cell>
            {isGone ? null : <Get download={download} name={path} path={withQuery(`trials/${trialId}/outputs/download`, { path })} />}
          </Table.Cell>
        </Table.Row>
      ))}
    </Table.Body>
  </Table.Root>
);

/** Checkpoints and outputs of a trial, with downloads where the API server can read the copies. */
export const FilesTab = ({ trial }: { trial: Trial }) => {
  const everyMs = ENDED.has(trial.state) ? null : EVERY_MS;
  const checkpoints = useData<{ rows: Checkpoint[] }>(`trials/${trial.trial_id}/checkpoints`, { everyMs });
  const outputs = useData<{ rows: Output[]; truncated: boolean }>(`trials/${trial.trial_id}/outputs`, { everyMs });
  return (
    <Stack gap={4}>
      <Stale stale={checkpoints.stale}>
        <Heading mb={2} size="sm">
          Checkpoints
        </Heading>
        {checkpoints.loading ? <Loading /> : null}
        {checkpoints.error === null ? null : <ErrorNotice error={checkpoints.error} onRetry={checkpoints.refresh} what="Checkpoints" />}
        {checkpoints.data?.rows.length === 0 ? <EmptyState command="ctx.save_checkpoint(...)" text="The training saves one by the library:" title="The trial has no checkpoint." /> : null}
        {checkpoints.data === undefined || checkpoints.data.rows.length === 0 ? null : <CheckpointTable isGone={checkpoints.error?.status === 404} rows={checkpoints.data.rows} trialId={trial.trial_id} />}
      </Stale>
      <Stale stale={outputs.stale}>
        <Heading mb={2} size="sm">
          Outputs
        </Heading>
        {outputs.loading ? <Loading /> : null}
        {outputs.error === null ? null : <ErrorNotice error={outputs.error} onRetry={outputs.refresh} what="Outputs" />}
        {outputs.data?.rows.length === 0 ? <EmptyState text="Files that a script writes into its output folder are copied when the attempt ends." title="The trial has no outputs." /> : null}
        {outputs.data === undefined || outputs.data.rows.length === 0 ? null : <OutputTable isGone={outputs.error?.status === 404} rows={outputs.data.rows} trialId={trial.trial_id} />}
        {outputs.data?.truncated === true ? (
          <Text color="fg.muted" fontSize="sm">
            <Words text={`More files exist. \`airflow dtrain trials outputs ${trial.trial_id}\` lists all of them.`} />
          </Text>
        ) : null}
      </Stale>
    </Stack>
  );
};
