import { Box, Button, HStack, Input, NativeSelect, Text } from "@chakra-ui/react";
import { type KeyboardEvent, useMemo, useRef, useState } from "react";

import { type RunNames } from "../../api/runs";
import { Icon } from "../../components/icons";
import { NamePicker } from "../../components/NamePicker";
import { allNames, completions, conditionOf, kindOf, operatorsOf, withCondition } from "./expressions";

/** Names that are offered below the field. */
const MOST_OFFERED = 6;

interface Props {
  where: string;
  names: RunNames;
  /** Message about the applied expression, with lines that mark the place; null: it was read. */
  wrong: string | null;
  onApply: (where: string) => void;
}

/** Adds a condition from a name, an operator and a value. */
const Builder = ({ names, onAdd }: { names: RunNames; onAdd: (condition: string) => void }) => {
  const [name, setName] = useState<string | null>(null);
  const [operator, setOperator] = useState("=");
  const [value, setValue] = useState("");
  const options = useMemo(() => allNames(names), [names]);
  const kind = name === null ? "any" : kindOf(names, name);
  const operators = operatorsOf(kind);
  const chosen = operators.includes(operator) ? operator : (operators[0] ?? "=");
  const needsValue = !chosen.startsWith("is ");
  const condition = name === null ? null : conditionOf(name, kind, chosen, value);
  const fact = names.facts.find((one) => one.name === name);
  const add = () => {
    if (condition === null) return;
    onAdd(condition);
    setValue("");
  };
  return (
    <HStack gap={2} mb={2} wrap="wrap">
      <NamePicker label="Name of the condition" onChange={setName} options={options} placeholder="Name" value={name} />
      <NativeSelect.Root size="sm" width="150px">
        <NativeSelect.Field aria-label="Operator of the condition" onChange={({ target }) => setOperator(target.value)} value={chosen}>
          {operators.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
      {needsValue ? (
        <Input
          aria-label="Value of the condition"
          list={fact !== undefined && fact.choices.length > 0 ? "dtrain-choices" : undefined}
          maxLength={200}
          onChange={({ target }) => setValue(target.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") add();
          }}
          placeholder={kind === "time" ? "2026-11-27" : kind === "flag" ? "true or false" : "Value"}
          size="sm"
          value={value}
          width="160px"
        />
      ) : null}
      <datalist id="dtrain-choices">
        {(fact?.choices ?? []).map((choice) => (
          <option key={choice} value={choice} />
        ))}
      </datalist>
      <Button disabled={condition === null} onClick={add} size="sm" variant="outline">
        <Icon name="plus" /> Add condition
      </Button>
      {fact === undefined ? null : (
        <Text color="fg.muted" fontSize="xs">
          {fact.meaning}
        </Text>
      )}
    </HStack>
  );
};

/** The filter: an expression that is typed, with names to complete, or built from parts. Enter applies it. */
export const FilterBar = ({ where, names, wrong, onApply }: Props) => {
  const [text, setText] = useState(where);
  const [known, setKnown] = useState(where);
  const [caret, setCaret] = useState(0);
  const [hasFocus, setFocus] = useState(false);
  const [isBuilding, setBuilding] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const options = useMemo(() => allNames(names), [names]);
  if (known !== where) {
    setKnown(where);
    setText(where);
  }
  const offered = useMemo(() => (hasFocus ? completions(text, caret, options, MOST_OFFERED) : { start: 0, found: [] }), [hasFocus, text, caret, options]);
  const complete = (name: string) => {
    const next = text.slice(0, offered.start) + name + text.slice(caret);
    const at = offered.start + name.length;
    setText(next);
    setCaret(at);
    requestAnimationFrame(() => {
      field.current?.focus();
      field.current?.setSelectionRange(at, at);
    });
  };
  const apply = (next: string) => {
    setText(next);
    onApply(next.trim());
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const [first] = offered.found;
    if (event.key === "Enter") apply(text);
    else if (event.key === "ArrowDown" && first !== undefined) {
      event.preventDefault();
      complete(first);
    }
  };
  return (
    <Box mb={2}>
      <HStack gap={2} wrap="wrap">
        <Input
          aria-describedby={wrong === null ? undefined : "dtrain-where-wrong"}
          aria-invalid={wrong !== null}
          aria-label="Filter"
          autoComplete="off"
          flex="1 1 320px"
          fontFamily="mono"
          maxLength={2000}
          onBlur={() => setFocus(false)}
          onChange={({ target }) => {
            setText(target.value);
            setCaret(target.selectionStart ?? target.value.length);
          }}
          onFocus={() => setFocus(true)}
          onKeyDown={onKeyDown}
          onSelect={({ currentTarget }) => setCaret(currentTarget.selectionStart ?? 0)}
          placeholder='metrics.accuracy > 0.9 and params.lr < 0.01 and tag = "paper"'
          ref={field}
          size="sm"
          spellCheck={false}
          value={text}
        />
        <Button colorPalette="brand" disabled={text.trim() === where} onClick={() => apply(text)} size="sm">
          Apply
        </Button>
        {where === "" ? null : (
          <Button onClick={() => apply("")} size="sm" variant="ghost">
            Clear
          </Button>
        )}
        <Button aria-expanded={isBuilding} onClick={() => setBuilding(!isBuilding)} size="sm" variant="outline">
          Build
        </Button>
      </HStack>
      {offered.found.length === 0 ? null : (
        <HStack aria-label="Names" gap={1} mt={1} role="group" wrap="wrap">
          {offered.found.map((name) => (
            <Button
              fontFamily="mono"
              fontWeight="normal"
              key={name}
              maxW="100%"
              onClick={() => complete(name)}
              // The field keeps the focus, so that the names stay until the click.
              onMouseDown={(event) => event.preventDefault()}
              overflow="hidden"
              size="2xs"
              variant="outline"
            >
              {name}
            </Button>
          ))}
          <Text color="fg.muted" fontSize="xs">
            Arrow down takes the first one.
          </Text>
        </HStack>
      )}
      {wrong === null ? null : (
        <Box as="pre" color="fg.error" fontFamily="mono" fontSize="sm" id="dtrain-where-wrong" mt={1} overflowX="auto" role="alert" whiteSpace="pre-wrap">
          {wrong}
        </Box>
      )}
      {isBuilding ? (
        <Box mt={2}>
          <Builder names={names} onAdd={(condition) => apply(withCondition(text, condition))} />
        </Box>
      ) : null}
    </Box>
  );
};
