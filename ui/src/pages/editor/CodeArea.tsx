import { Box, chakra } from "@chakra-ui/react";
import { type KeyboardEvent, type Ref, useMemo, useRef } from "react";

import { type PlacedProblem } from "../../api/experiment";
import { type Edit, indented, newLine } from "../../lib/indent";

interface Props {
  label: string;
  text: string;
  onChange: (text: string) => void;
  problems: readonly PlacedProblem[];
  /** Lines that differ from the source of a fork, from 0. */
  changed: ReadonlySet<number>;
  area: Ref<HTMLTextAreaElement>;
  helpId: string;
}

const LINE_PX = 20;
const LONGEST = 1024 * 1024;

/** Lines that have a number and a background of their own. A longer text has none beyond. */
const MOST_LINES = 5_000;

const backgroundOf = (severity: string | undefined, isChanged: boolean): string | undefined =>
  severity === "error" ? "bg.error" : severity === "warning" ? "bg.warning" : isChanged ? "bg.info" : undefined;

/** A text with numbered lines, of which those with problems and those that differ are marked. */
export const CodeArea = ({ label, text, onChange, problems, changed, area, helpId }: Props) => {
  const released = useRef(false);
  const total = useMemo(() => Math.min(MOST_LINES, text.split("\n").length), [text]);
  const worst = useMemo(() => {
    const found = new Map<number, PlacedProblem>();
    for (const problem of problems) if (found.get(problem.line)?.severity !== "error") found.set(problem.line, problem);
    return found;
  }, [problems]);
  const apply = (target: HTMLTextAreaElement, edit: Edit) => {
    onChange(edit.text);
    // The value is set by React after this event.
    requestAnimationFrame(() => target.setSelectionRange(edit.start, edit.end));
  };
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    const { currentTarget: target, key } = event;
    const { selectionStart, selectionEnd } = target;
    if (key === "Enter" && !event.ctrlKey && !event.metaKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      apply(target, newLine(text, selectionStart, selectionEnd));
    } else if (key === "Tab" && !released.current && !event.ctrlKey && !event.altKey) {
      event.preventDefault();
      apply(target, indented(text, selectionStart, selectionEnd, event.shiftKey));
    }
    // After Escape the next Tab leaves the editor, so that the keyboard is not caught in it.
    if (key !== "Shift") released.current = key === "Escape";
  };
  return (
    <Box _focusWithin={{ borderColor: "brand.focusRing", outline: "1px solid", outlineColor: "brand.focusRing" }} borderColor="border.emphasized" borderRadius="md" borderWidth={1} maxH="65vh" minH="300px" overflow="auto" resize="vertical">
      <Box display="flex" fontFamily="mono" fontSize="13px" lineHeight={`${LINE_PX}px`} minW="fit-content" position="relative" py={1}>
        <Box aria-hidden="true" inset={0} pointerEvents="none" position="absolute" pt={1}>
          {Array.from({ length: total }, (_, index) => (
            <Box bg={backgroundOf(worst.get(index + 1)?.severity, changed.has(index))} height={`${LINE_PX}px`} key={index} />
          ))}
        </Box>
        <Box aria-hidden="true" color="fg.muted" flexShrink={0} minW="3.5em" pr={3} position="relative" textAlign="end" userSelect="none">
          {Array.from({ length: total }, (_, index) => {
            const problem = worst.get(index + 1);
            return (
              <Box color={problem === undefined ? undefined : problem.severity === "error" ? "red.fg" : "orange.fg"} fontWeight={problem === undefined ? undefined : "bold"} height={`${LINE_PX}px`} key={index} title={problem?.message}>
                {problem === undefined ? "" : "! "}
                {index + 1}
              </Box>
            );
          })}
        </Box>
        <chakra.textarea
          aria-describedby={helpId}
          aria-invalid={problems.some(({ severity }) => severity === "error")}
          aria-label={label}
          autoCapitalize="off"
          autoComplete="off"
          autoCorrect="off"
          bg="transparent"
          flex="1"
          fontFamily="inherit"
          fontSize="inherit"
          maxLength={LONGEST}
          minW="60ch"
          onChange={(event) => onChange(event.target.value)}
          onKeyDown={onKeyDown}
          outline="none"
          overflow="hidden"
          position="relative"
          pr={2}
          ref={area}
          resize="none"
          rows={Math.max(14, text.split("\n").length + 1)}
          spellCheck={false}
          style={{ width: `${Math.max(60, longestLine(text) + 2)}ch` }}
          value={text}
          whiteSpace="pre"
          wrap="off"
        />
      </Box>
    </Box>
  );
};

/** Return the length of the longest line, up to a limit beyond which the text scrolls within the field. */
const longestLine = (text: string): number => text.split("\n").reduce((most, line) => Math.max(most, Math.min(2_000, line.length)), 0);
