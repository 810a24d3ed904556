import { Box, chakra, HStack } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { type Look } from "./palette";
import { Swatch } from "./Swatch";

export interface SeriesItem {
  id: string;
  name: string;
  look: Look;
  /** Value at the right, such as the metric. */
  value: string;
  /** Mark and link behind the name. */
  extra?: ReactNode;
}

interface Props {
  label: string;
  items: readonly SeriesItem[];
  marked: ReadonlySet<string>;
  onMark: (id: string) => void;
  onFocus: (id: string | null) => void;
  maxHeight: string;
}

/** Names of the series of a chart. Pointing at a name shows its curve, a click marks it. */
export const SeriesList = ({ label, items, marked, onMark, onFocus, maxHeight }: Props) => (
  <Box aria-label={label} as="ul" listStyleType="none" maxH={maxHeight} minW={0} onMouseLeave={() => onFocus(null)} overflowY="auto">
    {items.map(({ id, name, look, value, extra }) => (
      <HStack as="li" gap={1} key={id} minW={0}>
        <chakra.button
          _hover={{ bg: "bg.muted" }}
          alignItems="center"
          aria-pressed={marked.has(id)}
          bg={marked.has(id) ? "bg.emphasized" : undefined}
          borderRadius="sm"
          cursor="pointer"
          display="flex"
          flex="1"
          fontSize="sm"
          gap={2}
          minW={0}
          onBlur={() => onFocus(null)}
          onClick={() => onMark(id)}
          onFocus={() => onFocus(id)}
          onMouseEnter={() => onFocus(id)}
          px={1}
          py="2px"
          textAlign="start"
          title={name}
          type="button"
        >
          <Swatch look={look} />
          <Box flex="1" fontWeight={marked.has(id) ? "bold" : undefined} minW={0} overflow="hidden" textOverflow="ellipsis" whiteSpace="nowrap">
            {name}
          </Box>
          <Box flexShrink={0} fontVariantNumeric="tabular-nums">
            {value}
          </Box>
        </chakra.button>
        {extra}
      </HStack>
    ))}
  </Box>
);
