import { chakra, HStack, Text } from "@chakra-ui/react";
import { useId } from "react";

import { count } from "../format/numbers";
import { LATEST, placeOf } from "./series";

interface Props {
  steps: readonly number[];
  /** A step, or LATEST. */
  value: number;
  onChange: (step: number) => void;
}

/** Chooses one of the steps at which something was reported. Its end follows a trial that goes on. */
export const StepSlider = ({ steps, value, onChange }: Props) => {
  const id = useId();
  const last = steps.length - 1;
  const place = placeOf(steps, value);
  const step = steps[place] ?? 0;
  return (
    <HStack fontSize="sm" gap={3} maxW="44rem" width="100%">
      <chakra.label htmlFor={id}>Step</chakra.label>
      <chakra.input
        accentColor="brand.solid"
        aria-valuetext={`step ${count(step)}`}
        disabled={last === 0}
        flex={1}
        id={id}
        max={last}
        min={0}
        minW="6rem"
        onChange={(event) => {
          const chosen = Number(event.target.value);
          onChange(chosen === last ? LATEST : (steps[chosen] ?? LATEST));
        }}
        step={1}
        type="range"
        value={place}
      />
      <Text fontVariantNumeric="tabular-nums" minW="12ch">
        {count(step)}
        {place === last ? ", the latest" : ` of ${count(steps[last] ?? 0)}`}
      </Text>
    </HStack>
  );
};
