import { Box, chakra, Stack } from "@chakra-ui/react";

import { percent } from "../format/numbers";

interface Props {
  rows: readonly { name: string; value: number; chance?: number | null }[];
  /** Hyperparameter that a neighbouring chart shows. */
  chosen: string | null;
  onChoose: (name: string) => void;
}

/** Above this chance, an importance is no evidence. The note of the API has the same limit. */
const DOUBTFUL = 0.05;

/** Looks of bars that are no evidence, and of the other ones. Their colours are nearly the same. */
const HOLLOW = { borderColor: "fg.muted", borderWidth: 1 } as const;
const SOLID = { bg: "brand.solid" } as const;

const isDoubtful = (chance: number | null | undefined): boolean => chance !== null && chance !== undefined && chance > DOUBTFUL;

const share = (value: number): number => (Number.isFinite(value) ? Math.min(1, Math.max(0, value)) : 0);

/** Share of each hyperparameter in the spread of the metric, largest first. */
export const ImportanceBars = ({ rows, chosen, onChoose }: Props) => (
  <Stack as="ul" data-picture="html" gap={1} listStyleType="none" maxH="20rem" overflowY="auto">
    {rows.map(({ name, value, chance }) => (
      <li key={name}>
        <chakra.button
          _hover={{ bg: "bg.muted" }}
          aria-pressed={name === chosen}
          bg={name === chosen ? "bg.emphasized" : undefined}
          borderRadius="sm"
          cursor="pointer"
          display="block"
          onClick={() => onChoose(name)}
          px={2}
          py={1}
          textAlign="start"
          type="button"
          width="100%"
        >
          <Box display="flex" fontSize="sm" gap={2} justifyContent="space-between">
            <Box overflowWrap="anywhere">
              {name}
              {isDoubtful(chance) ? (
                <Box as="span" color="fg.muted" fontSize="xs" title={`If the metrics are shuffled among the trials, it is as important in ${percent(chance)} of the cases.`}>
                  {" "}
                  may be chance
                </Box>
              ) : null}
            </Box>
            <Box fontVariantNumeric="tabular-nums">{percent(value)}</Box>
          </Box>
          <Box bg="bg.emphasized" borderRadius="full" height="6px" mt={1}>
            <Box {...(isDoubtful(chance) ? HOLLOW : SOLID)} borderRadius="full" height="6px" style={{ width: `${100 * share(value)}%` }} />
          </Box>
        </chakra.button>
      </li>
    ))}
  </Stack>
);
