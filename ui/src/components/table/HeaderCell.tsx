import { Button } from "@chakra-ui/react";

import { Icon } from "../icons";
import { type Column } from "./DataTable";

interface Props<R> {
  column: Column<R>;
  sort: string | undefined;
  onSort: ((sort: string) => void) | undefined;
}

/** Title of a column. A button sorts by it, and then in the other order. */
export const HeaderCell = <R,>({ column, sort, onSort }: Props<R>) => {
  const name = column.sort;
  if (name === undefined || onSort === undefined) {
    return (
      <th data-align={column.align} data-pinned={column.pinned} scope="col">
        {column.header}
      </th>
    );
  }
  const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
  return (
    <th aria-sort={order} data-align={column.align} scope="col">
      <Button
        _hover={{ color: "brand.fg" }}
        color={order === "none" ? undefined : "brand.fg"}
        fontSize="sm"
        gap={1}
        height="auto"
        minW={0}
        onClick={() => onSort(order === "ascending" || (order === "none" && column.descends === true) ? `-${name}` : name)}
        p={0}
        title={`Sort by ${column.header}`}
        variant="plain"
      >
        {column.header}
        <Icon height="0.75em" name={order === "none" ? "sortable" : order === "ascending" ? "sortAscending" : "sortDescending"} opacity={order === "none" ? 0.6 : 1} />
      </Button>
    </th>
  );
};
