import { Button, CloseButton, Dialog, Field, Input, Portal, Stack, Text } from "@chakra-ui/react";
import { type FormEvent, type ReactNode, useRef, useState } from "react";

import { ApiError } from "../api/client";
import { Notice } from "./Notice";

/** A value that the user enters before an action. */
export interface Question {
  label: string;
  /** Explanation below the field. */
  help?: string;
  /** "number" accepts whole numbers only. */
  kind?: "number" | "text";
  initial?: string;
  required?: boolean;
  /** Bounds of a number. */
  least?: number;
  most?: number;
}

/** Return why a value is not accepted, or null. */
export const refusal = (value: string, { kind, required = false, least = -Infinity, most = Infinity }: Question): string | null => {
  if (value === "") return required ? "A value is required." : null;
  if (kind !== "number") return null;
  const number = Number(value);
  if (/^-?\d{1,9}$/.test(value) && number >= least && number <= most) return null;
  return `A whole number from ${least} to ${most} is expected.`;
};

interface Props {
  title: string;
  text: ReactNode;
  /** Label of the button that acts, a verb. */
  verb: string;
  /** Marks an action that cannot be undone. */
  dangerous?: boolean;
  question?: Question;
  /** Carry out the action. The dialog stays open with the reason when it fails. */
  onConfirm: (value: string) => Promise<void>;
  onClose: () => void;
}

const LONGEST = 1_000;

/** Asks before an action, and shows why the action failed. Enter confirms, Escape closes. */
export const ConfirmDialog = ({ title, text, verb, dangerous = false, question, onConfirm, onClose }: Props) => {
  const [value, setValue] = useState(question?.initial ?? "");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const first = useRef<HTMLInputElement>(null);
  const reason = question === undefined ? null : refusal(value.trim(), question);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (reason !== null || busy) return;
    setBusy(true);
    setError(null);
    try {
      await onConfirm(value.trim());
      onClose();
    } catch (thrown) {
      setError(thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown)));
      setBusy(false);
    }
  };
  return (
    <Dialog.Root
      initialFocusEl={question === undefined ? undefined : () => first.current}
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
                  <Text as="div" overflowWrap="anywhere">
                    {text}
                  </Text>
                  {question === undefined ? null : (
                    <Field.Root invalid={reason !== null && value !== ""} required={question.required === true}>
                      <Field.Label>{question.label}</Field.Label>
                      <Input
                        inputMode={question.kind === "number" ? "numeric" : "text"}
                        maxLength={LONGEST}
                        onChange={(event) => setValue(event.target.value)}
                        ref={first}
                        value={value}
                      />
                      {question.help === undefined ? null : <Field.HelperText>{question.help}</Field.HelperText>}
                      {reason === null ? null : <Field.ErrorText>{reason}</Field.ErrorText>}
                    </Field.Root>
                  )}
                  {error === null ? null : <Notice hint={error.hint} status="error" title={error.message} />}
                </Stack>
              </Dialog.Body>
              <Dialog.Footer>
                <Button onClick={onClose} type="button" variant="outline">
                  Cancel
                </Button>
                <Button colorPalette={dangerous ? "danger" : "brand"} disabled={reason !== null} loading={busy} type="submit">
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
