import { Box, chakra, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { type Differences } from "../../api/charts";
import { withQuery } from "../../api/client";
import { type ChangedFile, type CodeChanges, type CodeListing } from "../../api/code";
import { paths } from "../../app/paths";
import { ErrorNotice } from "../../components/ErrorNotice";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { count, plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { visible } from "../../lib/visible";
import { DifferenceRows } from "../compare/DifferenceRows";
import { countText, differenceGroups } from "../compare/differences";

/** Lines of all files that are unfolded at once. */
const MOST_LINES = 1_500;

const LOOKS: Record<string, { bg?: string; color?: string }> = { "+": { bg: "green.subtle" }, "-": { bg: "red.subtle" }, "@": { color: "fg.muted" } };

const WORDS: Record<ChangedFile["change"], string> = { added: "added", removed: "removed", changed: "changed" };

const summary = ({ change, added, removed, note }: ChangedFile): string =>
  [WORDS[change], added === null || removed === null ? "" : `+${count(added)} −${count(removed)}`, note].filter((part) => part !== "").join(", ");

const FileChanges = ({ file, unfolded }: { file: ChangedFile; unfolded: boolean }) => {
  const [isOpen, setOpen] = useState(unfolded);
  const title = (
    <>
      <chakra.span fontFamily="mono" fontWeight="medium" overflowWrap="anywhere">
        {visible(file.path)}
      </chakra.span>
      <chakra.span color="fg.muted" fontSize="sm" ms={2} overflowWrap="anywhere">
        {visible(summary(file))}
      </chakra.span>
    </>
  );
  if (file.lines.length === 0) return <Box>{title}</Box>;
  return (
    <chakra.details onToggle={(event) => setOpen(event.currentTarget.open)} open={unfolded}>
      <chakra.summary cursor="pointer">{title}</chakra.summary>
      {isOpen ? (
        <Box aria-label={`Changes of ${visible(file.path)}`} borderColor="border" borderRadius="md" borderWidth={1} fontFamily="mono" fontSize="13px" lineHeight="20px" maxH="70vh" mt={1} overflow="auto" role="region" tabIndex={0}>
          {file.lines.map((line, index) => (
            <Box {...LOOKS[line.charAt(0)]} key={index} px={2} style={{ tabSize: 4 }} whiteSpace="pre-wrap" wordBreak="break-word">
              {visible(line)}
            </Box>
          ))}
        </Box>
      ) : null}
    </chakra.details>
  );
};

const Code = ({ trials }: { trials: readonly number[] }) => {
  const { data, error, loading, refresh } = useData<CodeChanges>(withQuery("differences/code", { trial: trials.map(String) }), { everyMs: null });
  const unfolded = useMemo(() => {
    let left = MOST_LINES;
    return data?.files.map(({ lines }) => (left -= lines.length) >= 0) ?? [];
  }, [data]);
  if (loading) return <Loading lines={4} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Changes of the code" />;
  if (data.reason !== "") return <Text color="fg.muted">{data.reason}</Text>;
  if (data.files.length === 0) return <Text>Both have the same code.</Text>;
  return (
    <Stack gap={2}>
      <Text color="fg.muted" fontSize="sm">
        {plural(data.files.length + data.more, "file")} {data.files.length + data.more === 1 ? "differs" : "differ"}, {count(data.same)} {data.same === 1 ? "is" : "are"} equal.
        {data.more > 0 ? ` The first ${count(data.files.length)} are shown.` : ""}
      </Text>
      {data.files.map((file, index) => (
        <FileChanges file={file} key={file.path} unfolded={unfolded[index] ?? false} />
      ))}
    </Stack>
  );
};

interface Props {
  kind: "trial" | "experiment";
  id: string;
  /** The trial that the page shows. */
  trialId: number;
  /** The experiment with which it is compared. */
  against: string;
}

/** In what a trial or an experiment differs from another experiment: configuration, packages, and the code line by line. */
export const Changes = ({ kind, id, trialId, against }: Props) => {
  const other = useData<CodeListing>(`experiments/${against}/code`, { everyMs: null });
  const otherTrial = other.data?.trial_id;
  const path = otherTrial === undefined ? null : kind === "trial" ? withQuery("differences/trials", { trial: [String(otherTrial), String(trialId)] }) : withQuery("differences/experiments", { experiment: [against, id] });
  const { data, error, loading, refresh } = useData<Differences>(path, { everyMs: null });
  const groups = useMemo(() => (data === undefined ? [] : differenceGroups(data)), [data]);
  const problem = other.error ?? error;
  if (problem !== null) return <ErrorNotice error={problem} onRetry={other.error === null ? refresh : other.refresh} what={`Experiment ${against}`} />;
  if (loading || otherTrial === undefined || data === undefined) return <Loading lines={6} />;
  if (otherTrial === trialId) return <Text>This is the same trial.</Text>;
  const ids = [otherTrial, trialId];
  return (
    <Stack gap={3}>
      <Box aria-label="Differences" borderColor="border" borderRadius="md" borderWidth={1} maxH="45vh" overflow="auto" role="region" tabIndex={0}>
        <Table.Root size="sm" stickyHeader>
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader minW="160px">{countText(data)}</Table.ColumnHeader>
              <Table.ColumnHeader minW="150px">
                <PageLink to={paths.experiment(against)}>experiment {against}</PageLink>, trial {otherTrial}
              </Table.ColumnHeader>
              <Table.ColumnHeader minW="150px">this, trial {trialId}</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {groups.map((group) => (
              <DifferenceRows group={group} ids={ids} key={group.subject} />
            ))}
          </Table.Body>
        </Table.Root>
        {data.same.length === 0 ? null : (
          <Text color="fg.muted" fontSize="xs" p={2}>
            The same, and not shown: {data.same.join(", ")}.
          </Text>
        )}
      </Box>
      <HStack>
        <Text fontWeight="medium">Code</Text>
      </HStack>
      <Code trials={ids} />
    </Stack>
  );
};
