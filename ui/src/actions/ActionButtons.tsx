import { Button, HStack } from "@chakra-ui/react";

import { Icon } from "../components/icons";
import { type Action, ask } from "./ask";

interface Props {
  /** Name for screen readers: "Actions of trial 7". */
  label: string;
  actions: readonly Action[];
  onDone?: () => void;
}

/** Actions of the object that a page shows, as buttons. */
export const ActionButtons = ({ label, actions, onDone }: Props) =>
  actions.length === 0 ? null : (
    <HStack aria-label={label} gap={2} role="group" wrap="wrap">
      {actions.map((action) => (
        <Button color={action.dangerous === true ? "red.fg" : undefined} key={action.id} onClick={() => ask(action, onDone)} size="sm" variant="outline">
          <Icon name={action.icon} /> {action.label}
        </Button>
      ))}
    </HStack>
  );
