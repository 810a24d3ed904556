import { HStack, Text } from "@chakra-ui/react";

import { KINDS } from "./slots";

/** Meaning of the squares. */
export const Legend = () => (
  <HStack aria-label="Legend" as="ul" color="fg.muted" fontSize="xs" gap={4} listStyleType="none" wrap="wrap">
    {KINDS.map(({ kind, words }) => (
      <HStack as="li" gap={1.5} key={kind}>
        <i aria-hidden className={`dtrain-slot dtrain-slot-${kind}`} />
        <Text>{words}</Text>
      </HStack>
    ))}
  </HStack>
);
