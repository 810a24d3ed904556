import { Field, Input, Stack, Text, Textarea } from "@chakra-ui/react";
import { useState } from "react";

import { send } from "../api/client";
import { FormDialog } from "./FormDialog";
import { TagsEditor } from "./Tags";
import { toastSuccess } from "./toaster";

/** Names, description and tags that users give to an experiment or trial. */
export interface Labelled {
  name: string;
  display_name: string | null;
  description: string;
  tags: readonly string[];
}

interface Props {
  /** Route of the object: "trials/7". */
  path: string;
  /** The object in words: "trial 7". */
  words: string;
  labels: Labelled;
  onDone: () => void;
  onClose: () => void;
}

const LONGEST_NAME = 250;
const LONGEST_TEXT = 10_000;

/** Edits name, description and tags. */
export const LabelsDialog = ({ path, words, labels, onDone, onClose }: Props) => {
  const [name, setName] = useState(labels.display_name ?? "");
  const [description, setDescription] = useState(labels.description);
  const [tags, setTags] = useState<readonly string[]>(labels.tags);
  const save = async () => {
    await send("PATCH", path, { display_name: name.trim(), description, tags });
    toastSuccess(`Saved: ${words}.`);
    onDone();
  };
  return (
    <FormDialog onClose={onClose} onSubmit={save} title={`Name, description and tags of ${words}`} verb="Save">
      <Field.Root>
        <Field.Label>Name</Field.Label>
        <Input maxLength={LONGEST_NAME} onChange={(event) => setName(event.target.value)} placeholder={labels.name} value={name} />
        <Field.HelperText>Shown on pages instead of the name from the configuration.</Field.HelperText>
      </Field.Root>
      <Field.Root>
        <Field.Label>Description</Field.Label>
        <Textarea maxLength={LONGEST_TEXT} onChange={(event) => setDescription(event.target.value)} rows={5} value={description} />
        <Field.HelperText>A note in Markdown: headings, lists, quotes, code, emphasis and links.</Field.HelperText>
      </Field.Root>
      <Stack gap={1}>
        <Text fontSize="sm" fontWeight="medium">
          Tags
        </Text>
        <TagsEditor onChange={setTags} tags={tags} />
      </Stack>
    </FormDialog>
  );
};
