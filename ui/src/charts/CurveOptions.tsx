import { Box, chakra, Checkbox, HStack } from "@chakra-ui/react";
import { useId } from "react";

/** View of curves that the user chooses. It is in the address of the page. */
export interface CurveView {
  smooth: number;
  logy: boolean;
  robust: boolean;
}

export const USUAL_CURVE_VIEW: CurveView = { smooth: 0, logy: false, robust: false };

interface Props {
  view: CurveView;
  onChange: (change: Partial<CurveView>) => void;
}

const Check = ({ label, checked, title, onChange }: { label: string; checked: boolean; title: string; onChange: (checked: boolean) => void }) => (
  <Checkbox.Root checked={checked} onCheckedChange={(next) => onChange(next.checked === true)} size="sm" title={title}>
    <Checkbox.HiddenInput />
    <Checkbox.Control />
    <Checkbox.Label>{label}</Checkbox.Label>
  </Checkbox.Root>
);

/** Smoothing, log axis and outliers. */
export const CurveOptions = ({ view, onChange }: Props) => {
  const id = useId();
  return (
    <HStack columnGap={4} fontSize="sm" rowGap={1} wrap="wrap">
      <HStack gap={2}>
        <chakra.label htmlFor={id}>Smoothing</chakra.label>
        <chakra.input
          accentColor="brand.solid"
          id={id}
          max={0.99}
          min={0}
          onChange={(event) => onChange({ smooth: Number(event.target.value) })}
          step={0.01}
          type="range"
          value={Math.min(0.99, Math.max(0, view.smooth))}
          width="110px"
        />
        <Box fontVariantNumeric="tabular-nums" minW="4ch">
          {view.smooth === 0 ? "off" : view.smooth.toFixed(2)}
        </Box>
      </HStack>
      <Check checked={view.logy} label="Log y axis" onChange={(logy) => onChange({ logy })} title="Logarithmic y axis. Values that are not above 0 are not shown." />
      <Check checked={view.robust} label="Ignore outliers" onChange={(robust) => onChange({ robust })} title="Leave the largest and the smallest 1 % of the values outside of the y axis." />
    </HStack>
  );
};
