import { chakra, Grid } from "@chakra-ui/react";
import { type ReactNode } from "react";

export interface Fact {
  label: string;
  value: ReactNode;
  /** It has a sentence, and takes the room of two. */
  wide?: boolean;
}

/** Named values in columns. */
export const Facts = ({ facts }: { facts: readonly (Fact | null | false)[] }) => (
  <Grid as="dl" columnGap={6} gridTemplateColumns="repeat(auto-fill, minmax(180px, 1fr))" my={2} rowGap={2}>
    {facts
      .filter((fact): fact is Fact => fact !== null && fact !== false)
      .map(({ label, value, wide }) => (
        <chakra.div gridColumn={wide === true ? "span 2" : undefined} key={label} minW={0}>
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
