import { HStack } from "@chakra-ui/react";
import { useState } from "react";

import { type TrialRow } from "../../api/charts";
import { withQuery } from "../../api/client";
import { type ExperimentRow, type Experiments, type Page } from "../../api/types";
import { NamePicker } from "../../components/NamePicker";
import { useData } from "../../hooks/useData";

interface Props {
  known: readonly string[];
  onAdd: (id: string) => void;
}

/** Rows of which the user can choose. */
const MOST = 200;

const words = (text: string, id: number): string => `${text} (${id})`;

const experimentWords = ({ name, display_name, experiment_id }: ExperimentRow): string => words(display_name ?? name, experiment_id);

/** Choice of a trial: first its experiment, then the trial, best first. */
export const TrialAdder = ({ known, onAdd }: Props) => {
  const [experiment, setExperiment] = useState<ExperimentRow | null>(null);
  const experiments = useData<Experiments>(withQuery("experiments", { limit: MOST, sort: "created_at", order: "desc" }), { everyMs: null }).data?.rows ?? [];
  const path = experiment === null ? null : withQuery("trials", { experiment_id: experiment.experiment_id, limit: MOST, sort: "best_metric", order: experiment.smaller_is_better ? "asc" : "desc" });
  const rows = useData<Page<TrialRow>>(path, { everyMs: null }).data?.rows ?? [];
  const trials = rows.filter(({ trial_id }) => !known.includes(String(trial_id)));
  const trialWords = ({ name, trial_id }: TrialRow) => words(name, trial_id);
  return (
    <HStack gap={2} wrap="wrap">
      <NamePicker
        label="Experiment of the trial to add"
        onChange={(text) => setExperiment(experiments.find((row) => experimentWords(row) === text) ?? null)}
        options={experiments.map(experimentWords)}
        placeholder="Experiment"
        value={experiment === null ? null : experimentWords(experiment)}
      />
      {experiment === null ? null : (
        <NamePicker
          key={`${experiment.experiment_id} ${known.join()}`}
          label="Trial to add"
          onChange={(text) => {
            const found = trials.find((row) => trialWords(row) === text);
            if (found !== undefined) onAdd(String(found.trial_id));
          }}
          options={trials.map(trialWords)}
          placeholder="Add a trial"
          value={null}
        />
      )}
    </HStack>
  );
};
