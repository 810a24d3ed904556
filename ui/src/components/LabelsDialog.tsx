import { Button, CloseButton, Dialog, Field, Input, Portal, Stack, Text, Textarea } from "@chakra-ui/react";
import { type FormEvent, useState } from "react";

import { ApiError, send } from "../api/client";
import { Notice } from "./Notice";
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
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const save = async (event: FormEvent) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    try {
      await send("PATCH", path, { display_name: name.trim(), description, tags });
      toastSuccess(`Saved: ${words}.`);
      onDone();
      onClose();
    } catch (thrown) {
      setError(thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown)));
      setBusy(false);
    }
  };
  return (
    <Dialog.Root
      lazyMount
      onOpenChange={({ open }) => {
        if (!open && !busy) onClose();
      }}
      open
      size="md"
      unmountOnExit
    >
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content>
            <form onSubmit={(event) => void save(event)}>
              <Dialog.Header>
                <Dialog.Title overflowWrap="anywhere">Name, description and tags of {words}</Dialog.Title>
              </Dialog.Header>
              <Dialog.Body>
                <Stack gap={4}>
                  <Field.Root>
                    <Field.Label>Name</Field.Label>
                    <Input maxLength={LONGEST_NAME} onChange={(event) => setName(event.target.value)} placeholder={labels.name} value={name} />
                    <Field.HelperText>Shown on pages instead of the name from the configuration.</Field.HelperText>
                  </Field.Root>
                  <Field.Root>
                    <Field.Label>Description</Field.Label>
                    <Textarea maxLength={LONGEST_TEXT} onChange={(event) => setDescription(event.target.value)} rows={5} value={description} />
                  </Field.Root>
                  <Stack gap={1}>
                    <Text fontSize="sm" fontWeight="medium">
                      Tags
                    </Text>
                    <TagsEditor onChange={setTags} tags={tags} />
                  </Stack>
                  {error === null ? null : <Notice hint={error.hint} status="error" title={error.message} />}
                </Stack>
              </Dialog.Body>
              <Dialog.Footer>
                <Button onClick={onClose} type="button" variant="outline">
                  Cancel
                </Button>
                <Button colorPalette="brand" loading={busy} type="submit">
                  Save
                </Button>
              </Dialog.Footer>
              <Dialog.CloseTrigger asChild>
                <CloseButton aria-label="Close" size="sm" />
              </Dialog.CloseTrigger>
            </form>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
};
