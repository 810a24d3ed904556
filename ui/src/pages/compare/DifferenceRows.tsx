import { Button, Table } from "@chakra-ui/react";
import { useState } from "react";

import { plural } from "../../format/numbers";
import { type DifferenceGroup, type DifferenceRow } from "./differences";

/** Rows of a subject that are shown at once: hundreds of packages may differ. */
const MOST_UNFOLDED = 8;

interface Props {
  group: DifferenceGroup;
  ids: readonly number[];
}

/** Differences in one subject. Many of them are folded into a row that says how many there are. */
export const DifferenceRows = ({ group: { subject, rows }, ids }: Props) => {
  const [isOpen, setOpen] = useState(rows.length <= MOST_UNFOLDED || subject === "configuration");
  if (!isOpen) {
    return (
      <Table.Row>
        <Table.Cell colSpan={ids.length + 1}>
          <Button onClick={() => setOpen(true)} size="xs" variant="ghost">
            Show {plural(rows.length, "difference")} of {subject}
          </Button>
        </Table.Cell>
      </Table.Row>
    );
  }
  return rows.map(({ name, values, isHparam, isUnknown }: DifferenceRow) => (
    <Table.Row key={`${isHparam ? "h" : "c"} ${name}`}>
      <Table.Cell fontWeight={isHparam ? "medium" : undefined} overflowWrap="anywhere">
        {name}
      </Table.Cell>
      {values.map((value, index) => (
        <Table.Cell color={isUnknown ? "fg.muted" : undefined} key={ids[index]} overflowWrap="anywhere" verticalAlign="top">
          {value}
        </Table.Cell>
      ))}
    </Table.Row>
  ));
};
