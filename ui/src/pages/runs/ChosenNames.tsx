import { HStack, Tag, Text } from "@chakra-ui/react";

import { NamePicker } from "../../components/NamePicker";

interface Props {
  /** What the names are: "Columns". */
  label: string;
  chosen: readonly string[];
  options: readonly string[];
  placeholder: string;
  onChange: (chosen: readonly string[]) => void;
}

/** A list of names, to which names are added and from which they are removed. */
export const ChosenNames = ({ label, chosen, options, placeholder, onChange }: Props) => (
  <HStack gap={1} role="group" aria-label={label} wrap="wrap">
    <Text color="fg.muted" fontSize="sm">
      {label}
    </Text>
    {chosen.map((name) => (
      <Tag.Root key={name} maxW="240px" size="md" title={name}>
        <Tag.Label>{name}</Tag.Label>
        <Tag.EndElement>
          <Tag.CloseTrigger aria-label={`Remove ${name} from ${label.toLowerCase()}`} onClick={() => onChange(chosen.filter((other) => other !== name))} />
        </Tag.EndElement>
      </Tag.Root>
    ))}
    <NamePicker key={chosen.join("\n")} label={placeholder} onChange={(name) => onChange([...chosen, name])} options={options.filter((name) => !chosen.includes(name))} placeholder={placeholder} value={null} />
  </HStack>
);
