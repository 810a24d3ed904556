import { Text } from "@chakra-ui/react";

import { type Reproduction, type Reproductions } from "../../api/trial";
import { paths } from "../../app/paths";
import { Facts } from "../../components/Facts";
import { PageLink } from "../../components/Links";
import { SLOW_MS, useData } from "../../hooks/useData";

const Compared = ({ id, found }: { id: number; found: Reproduction }) => (
  <>
    <PageLink to={paths.trial(id)}>trial {id}</PageLink>
    <Text color={found.verdict === "differs" ? "fg.warning" : "fg.muted"} fontSize="xs" overflowWrap="anywhere">
      {found.text}
    </Text>
  </>
);

/** The trial that a trial runs again and those that run it again, with the comparison of the weights. Nothing without any. */
export const ReproductionFacts = ({ trialId }: { trialId: number }) => {
  const { data } = useData<Reproductions>(`trials/${trialId}/reproductions`, { everyMs: SLOW_MS });
  if (data === undefined || (data.of === null && data.by.length === 0)) return null;
  return (
    <Facts
      facts={[
        data.of !== null && { label: "Runs again", value: <Compared found={data.of} id={data.of.original_id} />, wide: true },
        ...data.by.map((found) => ({ label: `Run again by trial ${found.trial_id}`, value: <Compared found={found} id={found.trial_id} />, wide: true })),
      ]}
    />
  );
};
