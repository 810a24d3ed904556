import { Button, HStack, Text } from "@chakra-ui/react";

import { Icon } from "../../components/icons";
import { plural } from "../../format/numbers";
import { type Offer, offersOf } from "./bulk";

interface Props {
  count: number;
  /** The filter of the list: "", "only" or "all". */
  archived: string;
  onOffer: (offer: Offer) => void;
  onClear: () => void;
}

/** Actions on the selected rows. */
export const BulkBar = ({ count, archived, onOffer, onClear }: Props) => (
  <HStack aria-label="Actions on the selected experiments" bg="bg.subtle" borderRadius="md" gap={2} mb={2} p={2} role="toolbar" wrap="wrap">
    <Text fontSize="sm" fontWeight="medium">{plural(count, "experiment")} selected</Text>
    {offersOf(archived).map((offer) => (
      <Button colorPalette={offer.dangerous === true ? "danger" : "brand"} key={offer.action} onClick={() => onOffer(offer)} size="xs" variant="outline">
        <Icon name={offer.icon} /> {offer.verb}
      </Button>
    ))}
    <Button onClick={onClear} size="xs" variant="ghost">
      Clear the selection
    </Button>
  </HStack>
);
