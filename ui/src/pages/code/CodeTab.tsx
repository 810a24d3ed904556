import { Button, Flex, Stack, Text } from "@chakra-ui/react";

import { withQuery } from "../../api/client";
import { type CodeListing } from "../../api/code";
import { type Experiments } from "../../api/types";
import { paths } from "../../app/paths";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Facts } from "../../components/Facts";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { NamePicker } from "../../components/NamePicker";
import { bytes, count } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { useUrlState } from "../../hooks/useUrlState";
import { ProvenanceSection } from "../trial/ProvenanceSection";
import { gitWords, shortDigest } from "../trial/provenance";
import { Changes } from "./Changes";
import { CodeFiles } from "./CodeFiles";

/** The file that is shown, and the experiment with which this one is compared. */
const USUAL = { file: "", against: "" };

/** Experiments to choose from, latest first. */
const MOST = 200;

interface PickerProps {
  /** The experiment of the page. */
  own: number;
  listing: CodeListing;
  against: string;
  onChoose: (id: string) => void;
}

const Picker = ({ own, listing: { parent }, against, onChoose }: PickerProps) => {
  const rows = useData<Experiments>(withQuery("experiments", { limit: MOST, sort: "created_at", order: "desc" }), { everyMs: null }).data?.rows ?? [];
  const others = rows.filter(({ experiment_id }) => experiment_id !== own);
  const text = ({ name, display_name, experiment_id }: (typeof others)[number]) => `${display_name ?? name} (${experiment_id})`;
  const chosen = others.find(({ experiment_id }) => String(experiment_id) === against);
  return (
    <Flex align="center" gap={2} wrap="wrap">
      <Text fontSize="sm">Compare with</Text>
      {parent === null || parent.experiment_id === own ? null : (
        <Button aria-pressed={against === String(parent.experiment_id)} onClick={() => onChoose(String(parent.experiment_id))} size="xs" variant="outline">
          {parent.trial_id === null ? "its source" : `trial ${parent.trial_id}, which it runs again`}: {parent.name} ({parent.experiment_id})
        </Button>
      )}
      <NamePicker
        key={against}
        label="Experiment to compare with"
        onChange={(words) => {
          const found = others.find((row) => text(row) === words);
          if (found !== undefined) onChoose(String(found.experiment_id));
        }}
        options={others.map(text)}
        placeholder="Another experiment"
        value={chosen === undefined ? (against === "" ? null : `experiment ${against}`) : text(chosen)}
      />
      {against === "" ? null : (
        <Button onClick={() => onChoose("")} size="xs" variant="ghost">
          Show the files
        </Button>
      )}
    </Flex>
  );
};

interface Props {
  /** `trial` or `experiment`, and its id. */
  kind: "trial" | "experiment";
  id: string;
}

/** The code of a trial or an experiment: its files, or its differences from another experiment, and its packages. */
export const CodeTab = ({ kind, id }: Props) => {
  const [view, setView] = useUrlState(USUAL);
  const { data, error, loading, refresh } = useData<CodeListing>(`${kind}s/${id}/code`, { everyMs: null });
  if (loading) return <Loading lines={6} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Code" />;
  const against = /^\d{1,18}$/.test(view.against) ? view.against : "";
  const { digest, packed_bytes, files, more, git, bundle } = data;
  return (
    <Stack gap={3}>
      <Facts
        facts={[
          kind === "experiment" && { label: "Shown for", value: <PageLink to={paths.trial(data.trial_id)}>trial {data.trial_id}</PageLink> },
          { label: "Code", value: digest === null ? "none was sent" : `${shortDigest(digest)}${packed_bytes === null ? "" : `, ${bytes(packed_bytes)} packed`}` },
          { label: "Files", value: files.length === 0 ? "–" : count(files.length + more) },
          { label: "Git", value: gitWords(git), wide: true },
          { label: "DAG bundle", value: bundle === null ? "unknown" : `${bundle.name}, ${bundle.version === null || bundle.version === undefined ? "without a version" : `version ${bundle.version}`}`, wide: true },
        ]}
      />
      <Picker against={against} listing={data} onChoose={(id) => setView({ against: id }, "add")} own={data.experiment_id} />
      {against === "" ? (
        <CodeFiles file={view.file} listing={data} onFile={(file) => setView({ file })} />
      ) : (
        <Changes against={against} id={id} key={against} kind={kind} trialId={data.trial_id} />
      )}
      <ProvenanceSection id={String(data.trial_id)} key={data.trial_id} />
    </Stack>
  );
};
