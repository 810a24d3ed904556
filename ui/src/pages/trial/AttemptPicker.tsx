import { HStack, NativeSelect, Text } from "@chakra-ui/react";

interface Props {
  /** Number of attempts. */
  attempts: number;
  value: number | null;
  onChange: (attempt: number) => void;
}

/** Choice of an attempt, for a trial that has several. */
export const AttemptPicker = ({ attempts, value, onChange }: Props) => {
  if (attempts <= 1) return null;
  return (
    <HStack gap={2}>
      <Text fontSize="sm">Attempt</Text>
      <NativeSelect.Root size="xs" width="80px">
        <NativeSelect.Field aria-label="Attempt" onChange={(event) => onChange(Number(event.target.value))} value={value ?? attempts}>
          {Array.from({ length: attempts }, (_, index) => attempts - index).map((number) => (
            <option key={number} value={number}>
              {number}
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
    </HStack>
  );
};
