import { Box, Heading, HStack, SimpleGrid, Stack, Text } from "@chakra-ui/react";

import { type Trial } from "../../api/trial";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { Stale } from "../../components/Stale";
import { count } from "../../format/numbers";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { MediaView } from "../../media/MediaView";
import { itemAt, LATEST, type MediaSeries, placeOf, stepsOf, type TrialMedia } from "../../media/series";
import { StepSlider } from "../../media/StepSlider";
import { ENDED } from "./words";

/** Period of new copies, in milliseconds: a follower makes one in half a minute at most. */
const EVERY_MS = 10 * LIVE_MS;

const USUAL = { step: LATEST };

const Card = ({ trialId, series: { key, items }, step }: { trialId: number; series: MediaSeries; step: number }) => {
  const item = itemAt(items, step);
  return (
    <Box as="section" borderColor="border" borderRadius="md" borderWidth={1} minW={0} p={3}>
      <HStack align="baseline" justify="space-between" mb={2} wrap="wrap">
        <Heading overflowWrap="anywhere" size="sm">
          <bdi>{key}</bdi>
        </Heading>
        {item === null ? null : (
          <Text color="fg.muted" fontSize="xs">
            step {count(item.step)}
            {item.attempt > 1 ? `, attempt ${item.attempt}` : ""}
          </Text>
        )}
      </HStack>
      {item === null ? (
        <Text color="fg.muted" fontSize="sm">
          Its first report is at step {count(items[0]?.step ?? 0)}.
        </Text>
      ) : (
        <MediaView item={item} name={key} trialId={trialId} />
      )}
    </Box>
  );
};

/** Images, tables and texts that the training has reported, by key, at one step. */
export const MediaTab = ({ trial }: { trial: Trial }) => {
  const [view, setView] = useUrlState(USUAL);
  const everyMs = ENDED.has(trial.state) ? null : EVERY_MS;
  const { data, error, loading, stale, refresh } = useData<TrialMedia>(`trials/${trial.trial_id}/media`, { everyMs });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Media" />;
  const steps = stepsOf([data]);
  if (steps.length === 0) {
    return (
      <EmptyState
        command={'ctx.report_image("samples", image, step=step)'}
        text="Rank 0 reports images, tables, histograms and texts. They are copied while the trial runs and at its end, and the API server shows copies on its own machine:"
        title="The trial has reported no media."
      />
    );
  }
  const step = steps[placeOf(steps, view.step)] ?? 0;
  return (
    <Stale stale={stale}>
      <Stack gap={3}>
        {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Media" />}
        <StepSlider onChange={(chosen) => setView({ step: chosen })} steps={steps} value={view.step} />
        <SimpleGrid columns={{ base: 1, lg: 2 }} gap={3}>
          {data.series.map((series) => (
            <Card key={series.key} series={series} step={step} trialId={trial.trial_id} />
          ))}
        </SimpleGrid>
        {data.truncated ? (
          <Text color="fg.muted" fontSize="sm">
            The trial has more files than the page shows: these are those of its latest steps.
          </Text>
        ) : null}
      </Stack>
    </Stale>
  );
};
