import { createListCollection, Portal, Select } from "@chakra-ui/react";
import { type ReactNode, useMemo } from "react";

interface Props {
  /** Shown while nothing is chosen: "All states". */
  all: string;
  /** Name for screen readers. */
  label: string;
  options: readonly string[];
  value: readonly string[];
  onChange: (value: string[]) => void;
  multiple?: boolean;
  render?: (value: string) => ReactNode;
}

/** A filter by one or several values. */
export const FilterSelect = ({ all, label, options, value, onChange, multiple = true, render = (item) => item }: Props) => {
  const collection = useMemo(
    // A value of an old link stays choosable, so that the user can remove it.
    () => createListCollection({ items: [...new Set([...options, ...value])].map((item) => ({ label: item, value: item })) }),
    [options, value],
  );
  return (
    <Select.Root
      collection={collection}
      colorPalette="brand"
      lazyMount
      maxW="240px"
      // A chosen value has a button beside it that removes it.
      minW={value.length === 0 ? "140px" : "172px"}
      multiple={multiple}
      onValueChange={({ value: next }) => onChange(next)}
      size="sm"
      unmountOnExit
      value={[...value]}
      width="auto"
    >
      <Select.HiddenSelect />
      <Select.Label srOnly>{label}</Select.Label>
      <Select.Control>
        <Select.Trigger>
          <Select.ValueText color="fg.muted" placeholder={all}>
            {value.length === 0 ? all : value.length === 1 ? render(value[0] ?? "") : `${value.length} chosen`}
          </Select.ValueText>
        </Select.Trigger>
        <Select.IndicatorGroup>
          {value.length > 0 ? <Select.ClearTrigger aria-label={`Clear: ${label}`} /> : null}
          <Select.Indicator />
        </Select.IndicatorGroup>
      </Select.Control>
      <Portal>
        <Select.Positioner>
          <Select.Content>
            {collection.items.map((item) => (
              <Select.Item item={item} key={item.value}>
                {render(item.value)}
                <Select.ItemIndicator />
              </Select.Item>
            ))}
          </Select.Content>
        </Select.Positioner>
      </Portal>
    </Select.Root>
  );
};
