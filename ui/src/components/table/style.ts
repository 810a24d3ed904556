import { type SystemStyleObject } from "@chakra-ui/react";

import { ROW_PX } from "./visible";

/** Look of the Airflow UI's tables. One rule per element: a component per cell would make scrolling slow. */
export const TABLE_CSS: SystemStyleObject = {
  width: "100%",
  tableLayout: "fixed",
  borderCollapse: "separate",
  borderSpacing: 0,
  fontVariantNumeric: "tabular-nums",
  textStyle: "sm",
  "& th": {
    position: "sticky",
    top: 0,
    zIndex: 1,
    height: `${ROW_PX}px`,
    bg: "bg",
    px: 2,
    textAlign: "start",
    whiteSpace: "nowrap",
    fontWeight: "medium",
    borderBottomWidth: "1px",
    borderColor: "border",
  },
  "& td": {
    height: `${ROW_PX}px`,
    px: 2,
    py: 0,
    overflow: "hidden",
    textOverflow: "ellipsis",
    whiteSpace: "nowrap",
    borderBottomWidth: "1px",
    borderColor: "border",
  },
  "& tr[data-odd] td": { bg: "bg.muted" },
  "& tr[data-marked] td": { fontWeight: "bold" },
  "& tr[aria-selected=true] td": { bg: "brand.subtle" },
  "& tr[data-space] td": { height: "auto", border: 0, p: 0 },
  "& tbody tr:hover td": { bg: "bg.emphasized" },
  "& tbody tr:focus-visible": { outline: "2px solid", outlineColor: "brand.focusRing", outlineOffset: "-2px" },
  "& input[type=checkbox]": { boxSize: 4, accentColor: "{colors.brand.solid}", cursor: "pointer", verticalAlign: "middle" },
  "& [data-pinned]": { position: "sticky", right: 0, borderInlineStartWidth: "1px", borderInlineStartColor: "border" },
  "& td[data-pinned]": { bg: "bg" },
  "& th[data-pinned]": { zIndex: 2 },
  "& [data-full]": { display: "block", overflow: "hidden", textOverflow: "ellipsis" },
  // Attributes instead of :has(): the browser checks such a rule again for each row that a scroll adds.
  "& tbody tr:focus-visible td[data-whole], & tbody td[data-whole]:hover": { overflow: "visible", zIndex: 3 },
  "& tbody tr:focus-visible td[data-whole]:not([data-pinned]), & tbody td[data-whole]:not([data-pinned]):hover": { position: "relative" },
  "& tbody tr:focus-visible [data-full], & tbody td:hover > [data-full]": {
    position: "absolute", top: 1, right: 1, width: "max-content", minW: "calc(100% - 8px)", maxW: "26rem", px: 2, py: 1, overflow: "visible", whiteSpace: "normal",
    overflowWrap: "anywhere", bg: "bg.panel", borderWidth: 1, borderColor: "border.emphasized", borderRadius: "sm", boxShadow: "md",
  },
  // The text of a second column grows to the other side: a row with the focus shows both, and neither covers the other.
  "& td[data-whole] ~ td[data-whole]:not([data-pinned]) > [data-full]": { right: "auto", left: 1 },
  "& [data-align=end]": { textAlign: "end" },
};
