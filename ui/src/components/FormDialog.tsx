import { Button, CloseButton, Dialog, Portal, Stack } from "@chakra-ui/react";
import { type FormEvent, type ReactNode, type RefObject, useState } from "react";

import { ApiError } from "../api/client";
import { Notice } from "./Notice";

interface Props {
  title: string;
  /** Label of the button that acts, a verb. */
  verb: string;
  /** Marks an action that cannot be undone. */
  dangerous?: boolean;
  /** The values of the fields are accepted. */
  isValid?: boolean;
  /** Field that gets the focus first. Without it the first control does. */
  first?: RefObject<HTMLElement | null> | undefined;
  /** Return the element that gets the focus when the dialog closes, null for the one that had it before. */
  last?: (() => HTMLElement | null) | undefined;
  /** Act. The dialog stays open with the reason when it fails. */
  onSubmit: () => Promise<void>;
  onClose: () => void;
  children: ReactNode;
}

/** A form in a dialog, which shows why its action failed. Enter submits, Escape closes. */
export const FormDialog = ({ title, verb, dangerous = false, isValid = true, first, last, onSubmit, onClose, children }: Props) => {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (!isValid || busy) return;
    setBusy(true);
    setError(null);
    try {
      await onSubmit();
      onClose();
    } catch (thrown) {
      setError(thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown)));
      setBusy(false);
    }
  };
  return (
    <Dialog.Root
      finalFocusEl={last}
      initialFocusEl={first === undefined ? undefined : () => first.current}
      lazyMount
      onOpenChange={({ open }) => {
        if (!open && !busy) onClose();
      }}
      open
      role={dangerous ? "alertdialog" : "dialog"}
      unmountOnExit
    >
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content>
            <form onSubmit={(event) => void submit(event)}>
              <Dialog.Header>
                <Dialog.Title overflowWrap="anywhere">{title}</Dialog.Title>
              </Dialog.Header>
              <Dialog.Body>
                <Stack gap={4}>
                  {children}
                  {error === null ? null : <Notice hint={error.hint} status="error" title={error.message} />}
                </Stack>
              </Dialog.Body>
              <Dialog.Footer>
                <Button onClick={onClose} type="button" variant="outline">
                  Cancel
                </Button>
                <Button colorPalette={dangerous ? "danger" : "brand"} disabled={!isValid} loading={busy} type="submit">
                  {verb}
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
