import { Combobox, Portal, useListCollection } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { plural } from "../format/numbers";
import { matching } from "../lib/matching";

interface Props {
  /** Name for screen readers. */
  label: string;
  options: readonly string[];
  value: string | null;
  onChange: (value: string) => void;
  placeholder?: string;
}

/** Names in the list at one time. There may be thousands of metrics. */
const MOST = 100;

/** Choice of one name among many, by typing parts of it. */
export const NamePicker = ({ label, options, value, onChange, placeholder = "Choose" }: Props) => {
  const [text, setText] = useState("");
  const [isTyped, setTyped] = useState(false);
  const found = useMemo(() => matching(options, isTyped ? text : "", MOST), [options, text, isTyped]);
  const { collection, set } = useListCollection<{ label: string; value: string }>({ initialItems: [] });
  const items = useMemo(() => found.shown.map((name) => ({ label: name, value: name })), [found]);
  if (collection.items.length !== items.length || collection.items.some((item, index) => item.value !== items[index]?.value)) set(items);
  return (
    <Combobox.Root
      collection={collection}
      inputBehavior="autohighlight"
      inputValue={isTyped ? text : (value ?? "")}
      onInputValueChange={({ inputValue, reason }) => {
        setText(inputValue);
        setTyped(reason === "input-change");
      }}
      onOpenChange={({ open }) => {
        if (!open) setTyped(false);
      }}
      onValueChange={({ value: [chosen] }) => {
        setTyped(false);
        if (chosen !== undefined) onChange(chosen);
      }}
      openOnClick
      selectionBehavior="preserve"
      size="sm"
      value={value === null ? [] : [value]}
      width="240px"
    >
      <Combobox.Label srOnly>{label}</Combobox.Label>
      <Combobox.Control>
        <Combobox.Input placeholder={placeholder} />
        <Combobox.IndicatorGroup>
          <Combobox.Trigger />
        </Combobox.IndicatorGroup>
      </Combobox.Control>
      <Portal>
        <Combobox.Positioner>
          <Combobox.Content maxH="50vh">
            <Combobox.Empty>No name contains this.</Combobox.Empty>
            {items.map((item) => (
              <Combobox.Item item={item} key={item.value}>
                {item.label}
                <Combobox.ItemIndicator />
              </Combobox.Item>
            ))}
            {found.more > 0 ? <Combobox.Empty>{plural(found.more, "further name")}: type to find them.</Combobox.Empty> : null}
          </Combobox.Content>
        </Combobox.Positioner>
      </Portal>
    </Combobox.Root>
  );
};
