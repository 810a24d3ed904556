import { Box, Button, Flex, Grid, HStack, Input, Switch, Text } from "@chakra-ui/react";
import { useCallback, useMemo, useState } from "react";
import { useLocation } from "react-router-dom";

import { withQuery } from "../../../api/client";
import { type Ranks, type Timeline, type Trial } from "../../../api/trial";
import { FilterSelect } from "../../../components/FilterSelect";
import { SearchBar } from "../../../components/SearchBar";
import { time } from "../../../format/times";
import { SLOW_MS, useData } from "../../../hooks/useData";
import { useTimezone } from "../../../hooks/useTimezone";
import { useUrlState } from "../../../hooks/useUrlState";
import { AttemptPicker } from "../AttemptPicker";
import { ENDED } from "../words";
import { type Clock, LogPane } from "./LogPane";
import { asTime, LEVELS, RANKS_MOST, ranksOf, searchOf, USUAL_LOG } from "./query";

/** Ranks that the list offers. An address may name others. */
const OFFERED = 512;

/** A field for a time. What cannot be read as a time is marked, and not searched. */
const TimeField = ({ label, value, onChange }: { label: string; value: string; onChange: (value: string) => void }) => {
  const [text, setText] = useState(value);
  const [known, setKnown] = useState(value);
  if (known !== value) {
    setKnown(value);
    setText(value);
  }
  const isValid = text === "" || asTime(text) !== null;
  return (
    <HStack as="label" gap={1}>
      <Text fontSize="sm">{label}</Text>
      <Input
        aria-invalid={!isValid}
        onBlur={() => isValid && onChange(text)}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => event.key === "Enter" && isValid && onChange(text)}
        placeholder="2026-01-31T14:05Z"
        size="xs"
        value={text}
        width="165px"
      />
    </HStack>
  );
};

/** Logs of ranks: whole, live, searched, and beside each other. */
export const LogTab = ({ trial }: { trial: Trial }) => {
  const id = trial.trial_id;
  const [view, setView] = useUrlState(USUAL_LOG);
  const zone = useTimezone();
  const { pathname, search } = useLocation();
  // The tab of a task instance has the trial that it shows in its address.
  const shownTrial = new URLSearchParams(search).get("trial");
  const [clock, setClock] = useState<Clock | null>(null);
  const isLive = !ENDED.has(trial.state);
  const attempt = view.attempt > 0 ? view.attempt : null;
  const ranks = ranksOf(view.ranks);
  const query = useMemo(() => searchOf(view), [view]);
  const rows = useData<Ranks>(withQuery(`trials/${id}/ranks`, { attempt }), { everyMs: isLive ? SLOW_MS : null, keepPrevious: true }).data?.rows;
  const timeline = useData<Timeline>(`trials/${id}/timeline`, { everyMs: isLive ? SLOW_MS : null }).data?.entries;
  const hosts = useMemo(() => new Map(rows?.map(({ rank, host }) => [rank, host])), [rows]);
  const lineAddress = useCallback((rank: number, line: number) => withQuery(pathname, { trial: shownTrial, tab: "log", ranks: rank, attempt, line }), [pathname, shownTrial, attempt]);
  const timeAddress = useCallback((at: string) => withQuery(pathname, { trial: shownTrial, tab: "training", at }), [pathname, shownTrial]);
  const at = asTime(view.at);
  return (
    <Box>
      <Flex align="center" columnGap={3} mb={2} rowGap={2} wrap="wrap">
        <AttemptPicker attempts={trial.attempts_list.length} onChange={(next) => setView({ attempt: next, line: 0 })} value={attempt} />
        {rows !== undefined && rows.length > 1 ? (
          <FilterSelect
            all="Rank 0"
            label={`Ranks, at most ${RANKS_MOST}`}
            onChange={(next) => setView({ ranks: next.slice(-RANKS_MOST), line: 0 })}
            options={rows.slice(0, OFFERED).map(({ rank }) => String(rank))}
            render={(rank) => `Rank ${rank}`}
            value={ranks.map(String)}
          />
        ) : null}
        <SearchBar onChange={(grep) => setView({ grep })} placeholder={view.regex ? "Regular expression" : "Search the log"} value={view.grep} />
        <Switch.Root checked={view.regex} onCheckedChange={({ checked }) => setView({ regex: checked })} size="sm">
          <Switch.HiddenInput />
          <Switch.Control />
          <Switch.Label>Expression</Switch.Label>
        </Switch.Root>
        <FilterSelect all="All levels" label="Lowest level" multiple={false} onChange={(next) => setView({ level: next.at(-1) ?? "" })} options={LEVELS} value={view.level === "" ? [] : [view.level]} />
        <TimeField label="Since" onChange={(since) => setView({ since })} value={view.since} />
        <TimeField label="Until" onChange={(until) => setView({ until })} value={view.until} />
        {query === null ? null : <Button onClick={() => setView({ grep: "", regex: false, level: "", since: "", until: "" })} size="xs" variant="outline">Show all lines</Button>}
      </Flex>
      {at === null || query !== null || view.line > 0 ? null : (
        <HStack mb={2}>
          <Text fontSize="sm">The log begins at {time(at, zone)}.</Text>
          <Button onClick={() => setView({ at: "" })} size="xs" variant="outline">Go to its end</Button>
        </HStack>
      )}
      <Grid gap={3} gridTemplateColumns={{ base: "minmax(0, 1fr)", lg: ranks.length > 1 ? "minmax(0, 1fr) minmax(0, 1fr)" : "minmax(0, 1fr)" }}>
        {ranks.map((rank) => (
          <LogPane
            at={at}
            clock={clock}
            isShort={ranks.length > 2}
            host={hosts.get(rank) ?? null}
            key={`${rank} ${attempt ?? ""} ${view.at}`}
            line={view.line}
            lineAddress={lineAddress}
            marks={timeline ?? []}
            onClock={ranks.length > 1 ? setClock : null}
            place={{ trialId: id, rank, attempt }}
            query={query}
            timeAddress={timeAddress}
          />
        ))}
      </Grid>
      {ranks.length > 1 ? <Text color="fg.muted" fontSize="xs" mt={1}>The other ranks follow the one under the pointer, by the time of its lines.</Text> : null}
    </Box>
  );
};
