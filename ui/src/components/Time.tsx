import { chakra, type HTMLChakraProps } from "@chakra-ui/react";

import { duration, instant, relative, time } from "../format/times";
import { NONE } from "../format/numbers";
import { useNow } from "../hooks/useNow";
import { useTimezone } from "../hooks/useTimezone";

type Props = { at: string | null | undefined } & HTMLChakraProps<"time">;

/** A time in the time zone of the Airflow UI, as the Airflow UI writes it. */
export const Time = ({ at, ...rest }: Props) => {
  const zone = useTimezone();
  if (instant(at) === null) return <>{NONE}</>;
  return (
    <chakra.time dateTime={at ?? ""} title={zone.toUpperCase() === "UTC" ? undefined : `${time(at, "UTC")} UTC`} whiteSpace="nowrap" {...rest}>
      {time(at, zone)}
    </chakra.time>
  );
};

/** A time relative to now: 5 min ago. The tooltip has the time itself. */
export const Since = ({ at, ...rest }: Props) => {
  const zone = useTimezone();
  const now = useNow();
  if (instant(at) === null) return <>{NONE}</>;
  return (
    <chakra.time dateTime={at ?? ""} title={`${time(at, zone)} ${zone}`} whiteSpace="nowrap" {...rest}>
      {relative(at, now)}
    </chakra.time>
  );
};

/** The time that has passed since a start, up to an end or now. */
export const Elapsed = ({ from, until }: { from: string | null | undefined; until?: string | null | undefined }) => {
  const now = useNow();
  const start = instant(from);
  if (start === null) return <>{NONE}</>;
  return <>{duration(Math.max(0, Math.round(((instant(until) ?? now) - start) / 1000)))}</>;
};
