import { duration, instant, relative, time as timeText } from "../format/times";
import { NONE } from "../format/numbers";
import { useNow } from "../hooks/useNow";
import { useTimezone } from "../hooks/useTimezone";

interface Props {
  at: string | null | undefined;
}

/** A time in the time zone of the Airflow UI, as the Airflow UI writes it. */
export const Time = ({ at }: Props) => {
  const zone = useTimezone();
  if (instant(at) === null) return <>{NONE}</>;
  return (
    <time dateTime={at ?? ""} title={zone.toUpperCase() === "UTC" ? undefined : `${timeText(at, "UTC")} UTC`}>
      {timeText(at, zone)}
    </time>
  );
};

/** A time relative to now: 5 min ago. The tooltip has the time itself. */
export const Since = ({ at }: Props) => {
  const zone = useTimezone();
  const now = useNow();
  if (instant(at) === null) return <>{NONE}</>;
  return (
    <time dateTime={at ?? ""} title={`${timeText(at, zone)} ${zone}`}>
      {relative(at, now)}
    </time>
  );
};

/** The time that has passed since a start, up to an end or now. */
export const Elapsed = ({ from, until }: { from: string | null | undefined; until?: string | null | undefined }) => {
  const now = useNow();
  const start = instant(from);
  if (start === null) return <>{NONE}</>;
  return <>{duration(Math.max(0, Math.round(((instant(until) ?? now) - start) / 1000)))}</>;
};
