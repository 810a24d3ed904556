import { type SystemStyleObject } from "@chakra-ui/react";
import { memo } from "react";

import { type Host, type Holder } from "../../api/types";
import { kindOf, KINDS, paletteOf, slotSentence } from "./slots";

/** Side of a square with its gap, in pixels, and the squares of one line. */
export const SQUARE_PX = 18;
export const LINE = 16;

/** Rules of all squares. A slot in use is filled, a free one is an outline, one that gets no gang is crossed out. */
export const SQUARES_CSS: SystemStyleObject = {
  "& [data-slots]": { display: "grid", gap: "2px", justifyContent: "start" },
  "& [data-kind]": {
    display: "inline-block",
    boxSize: "16px",
    borderRadius: "3px",
    borderWidth: "1.5px",
    borderStyle: "solid",
    borderColor: { _light: "green.solid", _dark: "green.400" },
    cursor: "pointer",
  },
  ...Object.fromEntries(
    KINDS.flatMap(({ kind }) => {
      const palette = paletteOf(kind);
      return palette === null ? [] : [[`& [data-kind=${kind}]`, { bg: `${palette}.solid`, borderColor: `${palette}.solid` }]];
    }),
  ),
  "& [data-kind=granted]": { bg: "restarting.solid", borderColor: "restarting.solid" },
  "& [data-kind=expired]": { bg: "up_for_reschedule.solid", borderColor: "up_for_reschedule.solid" },
  "& [data-kind=unavailable], & [data-kind=disabled]": {
    borderColor: "border.emphasized",
    backgroundImage: "linear-gradient(to top right, transparent 44%, var(--chakra-colors-fg-muted) 46% 54%, transparent 56%)",
  },
  "& [data-crossed]": { backgroundImage: "linear-gradient(to top right, transparent 44%, white 46% 54%, transparent 56%)" },
  "& [data-gang][data-lit]": { outline: "2px solid", outlineColor: "fg", outlineOffset: "0px" },
  "& button[data-kind]:focus-visible": { outline: "2px solid", outlineColor: "brand.focusRing", outlineOffset: "1px" },
};

interface Props {
  host: Host;
  holders: Record<string, Holder>;
  /** Index of the square that the Tab key reaches, or null for none of this host. */
  focusable: number | null;
}

/** One square per slot. Its container handles pointer and keys, because a cluster has thousands. */
export const SlotSquares = memo(({ host, holders, focusable }: Props) => (
  <div aria-label={`Slots of ${host.name}`} data-slots role="group" style={{ gridTemplateColumns: `repeat(${Math.min(LINE, host.slots.length)}, 16px)` }}>
    {host.slots.map((slot, index) => {
      const holder = slot.holder === null || slot.holder === undefined ? null : (holders[String(slot.holder)] ?? null);
      return (
        <button
          aria-label={slotSentence({ host, index, slot, holder })}
          data-crossed={slot.state === "held" && slot.disabled === true ? true : undefined}
          data-gang={slot.holder ?? undefined}
          data-host={host.name}
          data-kind={kindOf(host, slot, holder)}
          data-slot={index}
          // The place is the identity of a slot.
          key={index}
          tabIndex={focusable === index ? 0 : -1}
          type="button"
        />
      );
    })}
  </div>
));
SlotSquares.displayName = "SlotSquares";
