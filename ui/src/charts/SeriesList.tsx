import { Box, chakra, HStack } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { type Look } from "./palette";
import { Swatch } from "./Swatch";

export interface SeriesItem {
  id: string;
  name: string;
  /** Shown instead of the name, which is then its tooltip. */
  short?: string;
  look: Look;
  /** Values at the right, such as the best and the last value, one per column. */
  values: readonly string[];
  /** Mark behind the name. */
  mark?: ReactNode;
  /** Link behind the values. */
  extra?: ReactNode;
}

interface Props {
  label: string;
  /** Names of the parts of short names. */
  heading?: string;
  /** Names of the values. */
  columns: readonly string[];
  items: readonly SeriesItem[];
  marked: ReadonlySet<string>;
  onMark: (id: string) => void;
  onFocus: (id: string | null) => void;
  maxHeight: string;
}

const VALUE_WIDTH = "3.4rem";
/** Room of the marks behind the values. */
const EXTRA_WIDTH = "1.6rem";

/** Names of the series of a chart. Pointing at a name shows its curve, a click marks it. */
export const SeriesList = ({ label, heading = "", columns, items, marked, onMark, onFocus, maxHeight }: Props) => (
  <Box maxH={maxHeight} minW={0} onMouseLeave={() => onFocus(null)} overflowY="auto">
    <HStack aria-hidden="true" bg="bg" color="fg.muted" fontSize="xs" gap={2} justify="end" position="sticky" pe={EXTRA_WIDTH} top={0} zIndex={1}>
      <Box flex="1" minW={0} overflow="hidden" ps={8} textOverflow="ellipsis" title={heading} whiteSpace="nowrap">
        {heading}
      </Box>
      {columns.map((name) => (
        <Box key={name} minW={VALUE_WIDTH} textAlign="end">
          {name}
        </Box>
      ))}
    </HStack>
    <Box aria-label={label} as="ul" listStyleType="none">
    {items.map(({ id, name, short = name, look, values, mark, extra }) => (
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
            {short}
          </Box>
          {mark}
          {values.map((value, index) => (
            <Box color={index > 0 ? "fg.muted" : undefined} flexShrink={0} fontVariantNumeric="tabular-nums" key={columns[index]} minW={VALUE_WIDTH} textAlign="end">
              <Box as="span" srOnly>
                {columns[index]}{" "}
              </Box>
              {value}
            </Box>
          ))}
        </chakra.button>
        {extra}
      </HStack>
    ))}
    </Box>
  </Box>
);
