import { chakra, Grid } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { useIsNarrow } from "../hooks/useIsNarrow";
import { Fold } from "./Fold";

export interface Fact {
  label: string;
  value: ReactNode;
  /** It has a sentence, and takes the room of two. */
  wide?: boolean;
  /** A phone shows it at once, and the remaining facts on request. */
  first?: boolean;
}

const Columns = ({ facts, leastPx }: { facts: readonly Fact[]; leastPx: number }) => (
  <Grid as="dl" columnGap={6} gridTemplateColumns={`repeat(auto-fill, minmax(min(100%, ${leastPx}px), 1fr))`} my={2} rowGap={2}>
    {facts.map(({ label, value, wide }) => (
      <chakra.div gridColumn={wide === true ? { base: "1 / -1", sm: "span 2" } : undefined} key={label} minW={0}>
        <chakra.dt color="fg.muted" fontSize="xs">
          {label}
        </chakra.dt>
        <chakra.dd fontSize="sm" m={0} overflowWrap="anywhere">
          {value}
        </chakra.dd>
      </chakra.div>
    ))}
  </Grid>
);

/** Named values in columns. A phone folds all but the first ones, if the page says which those are. */
export const Facts = ({ facts }: { facts: readonly (Fact | null | false)[] }) => {
  const isNarrow = useIsNarrow();
  const shown = facts.filter((fact): fact is Fact => fact !== null && fact !== false);
  const first = shown.filter((fact) => fact.first === true);
  if (!isNarrow || first.length === 0) return <Columns facts={shown} leastPx={180} />;
  return (
    <>
      <Columns facts={first} leastPx={120} />
      <Fold title="More facts">
        <Columns facts={shown.filter((fact) => fact.first !== true)} leastPx={120} />
      </Fold>
    </>
  );
};
