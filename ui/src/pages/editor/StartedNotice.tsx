import { Box, HStack, Spinner, Text } from "@chakra-ui/react";

import { withQuery } from "../../api/client";
import { type Started } from "../../api/experiment";
import { type Lookup } from "../../api/types";
import { paths } from "../../app/paths";
import { PageLink } from "../../components/Links";
import { LIVE_MS, useData } from "../../hooks/useData";

/** Leads to the experiment that was started, as soon as its DAG run has planned it. */
export const StartedNotice = ({ started }: { started: Started }) => {
  const { data } = useData<Lookup>(withQuery("lookup", { dag_id: started.dag_id, run_id: started.run_id }), { everyMs: LIVE_MS });
  const found = data?.experiments[0];
  return (
    <Box bg="bg.success" borderRadius="md" mb={3} p={3} role="status">
      <Text fontWeight="bold">{started.message}</Text>
      <HStack gap={4} mt={1} wrap="wrap">
        <PageLink to={paths.run(started.dag_id, started.run_id)}>DAG run {started.run_id}</PageLink>
        {found === undefined ? (
          <HStack gap={2}>
            <Spinner size="xs" /> <Text fontSize="sm">The DAG run plans the experiment.</Text>
          </HStack>
        ) : (
          <PageLink to={paths.experiment(found.experiment_id)}>Open experiment {found.name}</PageLink>
        )}
      </HStack>
    </Box>
  );
};
