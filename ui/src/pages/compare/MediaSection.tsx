import { Box, Grid, Heading, Stack, Text } from "@chakra-ui/react";

import { count } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { MediaView } from "../../media/MediaView";
import { itemAt, keysOf, LATEST, placeOf, stepsOf, type TrialMedia } from "../../media/series";
import { StepSlider } from "../../media/StepSlider";

const EVERY_MS = 10 * LIVE_MS;

interface Props {
  /** 2 to 8 trials. */
  ids: readonly string[];
  isLive: boolean;
}

const USUAL = { step: LATEST };

interface Column {
  id: string;
  media: TrialMedia;
}

/** Return the media of each trial that has any. Hooks are called in a fixed number, so there is one for each place. */
const useColumns = (ids: readonly string[], everyMs: number | null): Column[] => {
  const pathOf = (place: number) => (ids[place] === undefined ? null : `trials/${ids[place]}/media`);
  const loaded = [
    useData<TrialMedia>(pathOf(0), { everyMs }),
    useData<TrialMedia>(pathOf(1), { everyMs }),
    useData<TrialMedia>(pathOf(2), { everyMs }),
    useData<TrialMedia>(pathOf(3), { everyMs }),
    useData<TrialMedia>(pathOf(4), { everyMs }),
    useData<TrialMedia>(pathOf(5), { everyMs }),
    useData<TrialMedia>(pathOf(6), { everyMs }),
    useData<TrialMedia>(pathOf(7), { everyMs }),
  ];
  return ids.map((id, place) => ({ id, media: loaded[place]?.data ?? { series: [], truncated: false } }));
};

const Cell = ({ column: { id, media }, name, step }: { column: Column; name: string; step: number }) => {
  const item = itemAt(media.series.find(({ key }) => key === name)?.items ?? [], step);
  return (
    <Stack gap={1} minW={0}>
      <Text color="fg.muted" fontSize="xs">
        Trial {id}
        {item === null ? "" : `, step ${count(item.step)}`}
      </Text>
      {item === null ? (
        <Text color="fg.muted" fontSize="sm">
          No report up to this step.
        </Text>
      ) : (
        <MediaView item={item} name={`${name} of trial ${id}`} trialId={id} />
      )}
    </Stack>
  );
};

/** Images, tables and texts of the trials side by side, all at one step. Nothing, while no trial has any. */
export const MediaSection = ({ ids, isLive }: Props) => {
  const [view, setView] = useUrlState(USUAL);
  const columns = useColumns(ids, isLive ? EVERY_MS : null);
  const media = columns.map((column) => column.media);
  const steps = stepsOf(media);
  if (steps.length === 0) return null;
  const step = steps[placeOf(steps, view.step)] ?? 0;
  return (
    <Stack as="section" gap={3}>
      <Heading size="md">Media</Heading>
      <StepSlider onChange={(chosen) => setView({ step: chosen })} steps={steps} value={view.step} />
      {keysOf(media).map((key) => (
        <Box borderColor="border" borderRadius="md" borderWidth={1} key={key} p={3}>
          <Heading mb={2} overflowWrap="anywhere" size="sm">
            <bdi>{key}</bdi>
          </Heading>
          <Grid aria-label={`${key} of the trials`} gap={4} overflowX="auto" role="group" tabIndex={0} templateColumns={`repeat(${ids.length}, minmax(200px, 1fr))`}>
            {columns.map((column) => (
              <Cell column={column} key={column.id} name={key} step={step} />
            ))}
          </Grid>
        </Box>
      ))}
    </Stack>
  );
};
