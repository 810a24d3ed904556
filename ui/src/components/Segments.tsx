import { Button, ButtonGroup } from "@chakra-ui/react";

interface Props<T extends string> {
  /** Name for screen readers. */
  label: string;
  options: readonly { readonly value: T; readonly text: string }[];
  value: T;
  onChange: (value: T) => void;
}

/** Buttons of which one is pressed. */
export const Segments = <T extends string>({ label, options, value, onChange }: Props<T>) => (
  <ButtonGroup aria-label={label} attached role="group" size="xs" variant="outline">
    {options.map((option) => (
      <Button
        aria-pressed={option.value === value}
        bg={option.value === value ? "bg.emphasized" : undefined}
        fontWeight={option.value === value ? "bold" : "normal"}
        key={option.value}
        onClick={() => onChange(option.value)}
      >
        {option.text}
      </Button>
    ))}
  </ButtonGroup>
);
