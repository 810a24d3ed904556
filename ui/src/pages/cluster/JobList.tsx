import { Box, Heading, Table, Text } from "@chakra-ui/react";

import { type SchedulerJob } from "../../api/types";
import { StateBadge } from "../../components/StateBadge";
import { Elapsed, Since, Time } from "../../components/Time";
import { NONE, plural } from "../../format/numbers";
import { nodesText } from "./jobs";

/** Rows of the list. Further jobs are on the page of the queue. */
const MOST = 200;

const When = ({ job }: { job: SchedulerJob }) => {
  if (job.started_at !== null) {
    return (
      <>
        <Since at={job.started_at} />
        {job.ends_at === null ? null : (
          <Text color="fg.muted" fontSize="xs">
            until <Time at={job.ends_at} /> at the latest
          </Text>
        )}
      </>
    );
  }
  return job.expected_at === null ? (
    <>{NONE}</>
  ) : (
    <>
      about <Time at={job.expected_at} />
    </>
  );
};

/** Jobs of external schedulers that wait or run. */
export const JobList = ({ jobs }: { jobs: readonly SchedulerJob[] }) => {
  if (jobs.length === 0) return null;
  return (
    <Box mb={4}>
      <Heading mb={1} size="md">
        {plural(jobs.length, "job")}
      </Heading>
      <Box aria-label="Jobs of schedulers" maxH="22rem" overflow="auto" role="region" tabIndex={0}>
        <Table.Root size="sm" stickyHeader>
          <Table.Header>
            <Table.Row>
              {["Job", "Pool", "State", "Nodes, reason", "Submitted", "Waited", "Start"].map((name) => (
                <Table.ColumnHeader key={name}>{name}</Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {jobs.slice(0, MOST).map((job) => (
              <Table.Row key={`${job.pool} ${job.allocation_id} ${job.number ?? ""}`}>
                <Table.Cell>{job.number ?? "no number yet"}</Table.Cell>
                <Table.Cell>
                  {job.pool} <Box as="span" color="fg.muted">({job.scheduler})</Box>
                </Table.Cell>
                <Table.Cell>
                  <StateBadge small state={job.phase} />
                </Table.Cell>
                <Table.Cell overflowWrap="anywhere">{[nodesText(job.nodes), job.asked_back ?? job.reason].filter((part) => part !== "").join(". ") || NONE}</Table.Cell>
                <Table.Cell whiteSpace="nowrap">
                  <Since at={job.submitted_at} />
                </Table.Cell>
                <Table.Cell whiteSpace="nowrap">
                  <Elapsed from={job.submitted_at} until={job.started_at} />
                </Table.Cell>
                <Table.Cell>
                  <When job={job} />
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
    </Box>
  );
};
