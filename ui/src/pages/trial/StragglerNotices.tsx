import { Button, Text } from "@chakra-ui/react";
import { useState } from "react";

import { type Straggler } from "../../api/trial";
import { Notice } from "../../components/Notice";
import { Time } from "../../components/Time";
import { plural } from "../../format/numbers";

/** Slow ranks that are shown at first, the latest ones. */
const SHOWN = 3;

/** Slow ranks that were named while the trial ran, each with its cause, the latest first. */
export const StragglerNotices = ({ stragglers }: { stragglers: readonly Straggler[] }) => {
  const [all, setAll] = useState(false);
  const latest = [...stragglers].reverse();
  return (
    <>
      {latest.slice(0, all ? latest.length : SHOWN).map(({ advice, attempt, rank, since, text, until }) => (
        <Notice hint={advice} key={`${attempt} ${rank} ${since}`} status={until === null ? "warning" : "info"} title={text}>
          <Text fontSize="sm">
            From <Time at={since} /> {until === null ? "until now" : <>to <Time at={until} /></>}
          </Text>
        </Notice>
      ))}
      {latest.length > SHOWN && !all ? (
        <Button alignSelf="start" onClick={() => setAll(true)} size="sm" variant="outline">
          Show {plural(latest.length - SHOWN, "earlier slow rank")}
        </Button>
      ) : null}
    </>
  );
};
