import { Box, Button, DataList, HStack, Popover, Portal, Stack, Text } from "@chakra-ui/react";

import { ask } from "../../actions/ask";
import { slotActions } from "../../actions/hosts";
import { paths } from "../../app/paths";
import { PageLink, TaskLinks } from "../../components/Links";
import { Since } from "../../components/Time";
import { Icon } from "../../components/icons";
import { plural } from "../../format/numbers";
import { heatText, useHostValues } from "./heat";
import { holderWords, type Place, stateWords } from "./slots";

const Facts = ({ place }: { place: Place }) => {
  const { host, index, slot, holder } = place;
  const { isShown, unit, slots } = useHostValues(host.name);
  const facts: [string, React.ReactNode][] = [["State", stateWords(place)]];
  if (isShown) facts.push(["Measured", heatText(slots[index], unit)]);
  if (holder !== null) {
    if (holder.is_hidden) facts.push(["Held by", holderWords(holder)]);
    else {
      if (holder.trial_id !== null) facts.push(["Trial", <PageLink key="trial" to={paths.trial(holder.trial_id)}>{`Trial ${holder.trial_id}${holder.trial_name === null ? "" : `: ${holder.trial_name}`}`}</PageLink>]);
      facts.push(["Experiment", holder.experiment_id === null ? holder.experiment : <PageLink key="experiment" to={paths.experiment(holder.experiment_id)}>{holder.experiment}</PageLink>]);
      facts.push(["Gang", plural(holder.slots, "slot")]);
      if (holder.task !== null) facts.push(["Task, DAG", <TaskLinks key="task" task={holder.task} />]);
    }
    facts.push(["Since", <Since at={holder.since} key="since" />]);
  }
  if (slot.note !== undefined && slot.note !== "") facts.push(["Note", slot.note]);
  if (host.state_reason !== undefined && host.state_reason !== "") facts.push(["Host", host.state_reason]);
  return (
    <Stack gap={2}>
      <Text fontWeight="bold" overflowWrap="anywhere">
        {host.name}, slot {index}
      </Text>
      <DataList.Root gap={1} orientation="horizontal" size="sm">
        {facts.map(([label, value]) => (
          <DataList.Item alignItems="start" key={label}>
            <DataList.ItemLabel minW="80px">{label}</DataList.ItemLabel>
            <DataList.ItemValue lineClamp={4} minW={0} overflowWrap="anywhere">
              {value}
            </DataList.ItemValue>
          </DataList.Item>
        ))}
      </DataList.Root>
    </Stack>
  );
};

const WIDTH_PX = 340;
const GAP_PX = 6;

/** Facts of the slot below the pointer or with the focus. */
export const SlotTooltip = ({ place, rect }: { place: Place; rect: DOMRect }) => {
  const isLow = rect.bottom > window.innerHeight * 0.65;
  const left = Math.max(8, Math.min(rect.left, window.innerWidth - WIDTH_PX - 8));
  return (
    <Portal>
      <Box
        bg="bg.panel"
        borderRadius="md"
        borderWidth={1}
        boxShadow="md"
        data-testid="slot-tooltip"
        p={3}
        pointerEvents="none"
        position="fixed"
        role="tooltip"
        style={{ left, ...(isLow ? { bottom: window.innerHeight - rect.top + GAP_PX } : { top: rect.bottom + GAP_PX }) }}
        width={`${WIDTH_PX}px`}
        zIndex="tooltip"
      >
        <Facts place={place} />
      </Box>
    </Portal>
  );
};

interface CardProps {
  place: Place;
  anchor: Element;
  mayChange: boolean;
  onClose: () => void;
  onDone: () => void;
}

/** Facts of a slot with its links and actions. Escape closes it and returns to the square. */
export const SlotCard = ({ place, anchor, mayChange, onClose, onDone }: CardProps) => (
  <Popover.Root
    lazyMount
    onOpenChange={({ open }) => {
      if (!open) onClose();
    }}
    open
    positioning={{ getAnchorRect: () => anchor.getBoundingClientRect(), placement: "bottom-start" }}
    unmountOnExit
  >
    <Portal>
      <Popover.Positioner>
        <Popover.Content aria-label={`${place.host.name}, slot ${place.index}`} data-testid="slot-card" width={`${WIDTH_PX}px`}>
          <Popover.Body>
            <Facts place={place} />
            <Text fontSize="sm" mt={2}>
              <PageLink to={paths.hostDay(place.host.name)}>What this host did in the last 24 hours</PageLink>
            </Text>
            {mayChange ? (
              <HStack mt={3}>
                {(place.host.job ? [] : slotActions(place.host.name, place.index, place.slot)).map((action) => (
                  <Button
                    key={action.id}
                    onClick={() => {
                      onClose();
                      ask(action, onDone);
                    }}
                    size="xs"
                    variant="outline"
                  >
                    <Icon name={action.icon} /> {action.label} the slot
                  </Button>
                ))}
              </HStack>
            ) : null}
          </Popover.Body>
        </Popover.Content>
      </Popover.Positioner>
    </Portal>
  </Popover.Root>
);
