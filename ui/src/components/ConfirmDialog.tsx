import { Field, Input, Text } from "@chakra-ui/react";
import { type ReactNode, useRef, useState } from "react";

import { FormDialog } from "./FormDialog";

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
  dangerous?: boolean | undefined;
  question?: Question | undefined;
  /** Return the element that gets the focus when the dialog closes, null for the one that had it before. */
  last?: () => HTMLElement | null;
  /** Carry out the action. The dialog stays open with the reason when it fails. */
  onConfirm: (value: string) => Promise<void>;
  onClose: () => void;
}

const LONGEST = 1_000;

/** Asks before an action. */
export const ConfirmDialog = ({ title, text, verb, dangerous = false, question, last, onConfirm, onClose }: Props) => {
  const [value, setValue] = useState(question?.initial ?? "");
  const first = useRef<HTMLInputElement>(null);
  const reason = question === undefined ? null : refusal(value.trim(), question);
  return (
    <FormDialog dangerous={dangerous} first={question === undefined ? undefined : first} isValid={reason === null} last={last} onClose={onClose} onSubmit={() => onConfirm(value.trim())} title={title} verb={verb}>
      <Text as="div" overflowWrap="anywhere">
        {text}
      </Text>
      {question === undefined ? null : (
        <Field.Root invalid={reason !== null && value !== ""} required={question.required === true}>
          <Field.Label>{question.label}</Field.Label>
          <Input inputMode={question.kind === "number" ? "numeric" : "text"} maxLength={LONGEST} onChange={(event) => setValue(event.target.value)} ref={first} value={value} />
          {question.help === undefined ? null : <Field.HelperText>{question.help}</Field.HelperText>}
          {reason === null ? null : <Field.ErrorText>{reason}</Field.ErrorText>}
        </Field.Root>
      )}
    </FormDialog>
  );
};
