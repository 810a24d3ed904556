import { memo } from "react";

import { type Host, type Holder } from "../../api/types";
import { sequential } from "../../charts/palette";
import { useChartColors } from "../../charts/theme";
import { heatText, useHostValues } from "./heat";
import { holderOf, kindOf, slotSentence, slotState } from "./slots";

/** Side of a square with its gap, in pixels, and the squares of one line. */
export const SQUARE_PX = 18;
export const LINE = 16;

/** Return the classes of a square. Each kind has one rule: a cluster has thousands of squares. */
const classOf = (kind: string, isCrossed: boolean): string => `dtrain-slot dtrain-slot-${kind}${isCrossed ? " dtrain-slot-crossed" : ""}`;

interface Props {
  host: Host;
  holders: Record<string, Holder>;
  /** Index of the square that the Tab key reaches, or null for none of this host. */
  focusable: number | null;
}

/** One square per slot. Its container handles pointer and keys, because a cluster has thousands. */
export const SlotSquares = memo(({ host, holders, focusable }: Props) => {
  const { isShown, unit, place, slots } = useHostValues(host.name);
  const { mode } = useChartColors();
  return (
    <div aria-label={`Slots of ${host.name}`} className="dtrain-slots" role="group" style={{ gridTemplateColumns: `repeat(${Math.min(LINE, host.slots.length)}, 16px)` }}>
      {host.slots.map((slot, index) => {
        const holder = holderOf({ holders }, slot);
        const value = slots[index];
        const kind = kindOf(host, slot, holder);
        const isMeasured = isShown && value !== null && value !== undefined;
        return (
          <button
            aria-label={`${slotSentence({ host, index, slot, holder })}${isShown ? `, ${heatText(value, unit)}` : ""}`}
            className={isShown ? (isMeasured ? "dtrain-slot" : "dtrain-slot dtrain-slot-gap") : classOf(kind, slotState(slot) === "held" && slot.is_enabled === false)}
            data-gang={slot.allocation_id ?? undefined}
            data-host={host.name}
            data-kind={kind}
            data-slot={index}
            // The place is the identity of a slot.
            key={index}
            style={isMeasured ? { background: sequential(place(value), mode) } : undefined}
            tabIndex={focusable === index ? 0 : -1}
            type="button"
          />
        );
      })}
    </div>
  );
});
SlotSquares.displayName = "SlotSquares";
