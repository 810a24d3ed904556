import { Button, Menu, Portal } from "@chakra-ui/react";

import { Icon } from "../icons";

interface Item {
  id: string;
  header: string;
  optional?: boolean;
}

/** Return the ids of the columns that a table shows before the user has chosen any. */
export const usualColumns = (columns: readonly Item[]): string[] => columns.filter(({ optional }) => optional !== true).map(({ id }) => id);

/** Return the columns that are shown, in the table's order. Unknown names, from an older link, are ignored. */
export const chosenColumns = <C extends Item>(columns: readonly C[], chosen: readonly string[]): C[] => {
  const known = columns.filter(({ id }) => chosen.includes(id));
  return known.length > 0 ? known : columns.filter(({ optional }) => optional !== true);
};

interface Props {
  columns: readonly Item[];
  chosen: readonly string[];
  onChange: (chosen: string[]) => void;
}

/** Menu with one check box per column. */
export const ColumnsMenu = ({ columns, chosen, onChange }: Props) => {
  const shown = chosenColumns(columns, chosen).map(({ id }) => id);
  const toggle = (id: string, checked: boolean) => {
    const next = columns.filter((column) => (column.id === id ? checked : shown.includes(column.id))).map((column) => column.id);
    if (next.length > 0) onChange(next);
  };
  return (
    <Menu.Root closeOnSelect={false} lazyMount unmountOnExit>
      <Menu.Trigger asChild>
        <Button size="sm" variant="outline">
          <Icon name="columns" /> Columns
        </Button>
      </Menu.Trigger>
      <Portal>
        <Menu.Positioner>
          <Menu.Content maxH="60vh" overflowY="auto">
            {columns.map(({ id, header }) => (
              <Menu.CheckboxItem checked={shown.includes(id)} key={id} onCheckedChange={(checked) => toggle(id, checked)} value={id}>
                <Menu.ItemIndicator />
                {header}
              </Menu.CheckboxItem>
            ))}
            <Menu.Separator />
            <Menu.Item onClick={() => onChange(usualColumns(columns))} value="usual">
              Usual columns
            </Menu.Item>
          </Menu.Content>
        </Menu.Positioner>
      </Portal>
    </Menu.Root>
  );
};
