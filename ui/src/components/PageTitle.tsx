import { Box, Flex, Heading, HStack, IconButton, Text } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";

import { Icon } from "./icons";
import { type Labelled, LabelsDialog } from "./LabelsDialog";
import { Markdown } from "./Markdown";
import { StateBadge } from "./StateBadge";
import { Tags } from "./Tags";

interface Props {
  state: string;
  labels: Labelled;
  /** Heading of an object without a display name; its name stands below. Without it the name is the heading. */
  heading?: string;
  /** Route of the object: "trials/7". */
  path: string;
  words: string;
  mayEdit: boolean;
  onEdited: () => void;
  onTag?: (tag: string) => void;
  /** Buttons beside the title. */
  children?: ReactNode;
}

/** State, name, tags and description of the object that a page shows, with a dialog to edit them. */
export const PageTitle = ({ state, labels, heading, path, words, mayEdit, onEdited, onTag, children }: Props) => {
  const [isEdited, setEdited] = useState(false);
  const { name, display_name, description, tags } = labels;
  const shown = display_name ?? heading ?? name;
  return (
    <Box mb={2}>
      <Flex align="center" gap={3} wrap="wrap">
        <StateBadge state={state} />
        <Heading minW={0} overflowWrap="anywhere" size="lg">
          {shown}
        </Heading>
        {mayEdit ? (
          <IconButton aria-label={`Edit name, description and tags of ${words}`} onClick={() => setEdited(true)} size="xs" title="Edit name, description and tags" variant="ghost">
            <Icon name="pencil" />
          </IconButton>
        ) : null}
        <Tags tags={tags} {...(onTag === undefined ? {} : { onPick: onTag })} />
        <HStack flex="1" gap={2} justify="flex-end" wrap="wrap">
          {children}
        </HStack>
      </Flex>
      {shown === name || shown.endsWith(`, ${name}`) ? null : (
        <Text color="fg.muted" fontSize="sm" overflowWrap="anywhere">
          {name}
        </Text>
      )}
      {description === "" ? null : (
        <Box mt={1}>
          <Markdown text={description} />
        </Box>
      )}
      {isEdited ? <LabelsDialog labels={labels} onClose={() => setEdited(false)} onDone={onEdited} path={path} words={words} /> : null}
    </Box>
  );
};
