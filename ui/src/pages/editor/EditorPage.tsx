import { Button, Flex, Grid, Heading, HStack, NativeSelect, Text } from "@chakra-ui/react";
import { useEffect, useId, useMemo, useRef, useState } from "react";
import { useSearchParams } from "react-router-dom";

import { ask } from "../../actions/ask";
import { send } from "../../api/client";
import { type Experiment, type ForkSource, type PlacedProblem, type Started, type Templates, type Validation } from "../../api/experiment";
import { type Me } from "../../api/types";
import { paths } from "../../app/paths";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Icon } from "../../components/icons";
import { PageLink } from "../../components/Links";
import { Loading } from "../../components/Loading";
import { Notice } from "../../components/Notice";
import { plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { useMe } from "../../hooks/useMe";
import { changedLines } from "../../lib/lineDiff";
import { CodeArea } from "./CodeArea";
import { draftOf, keepDraft } from "./drafts";
import { Outcome } from "./Outcome";
import { StartedNotice } from "./StartedNotice";
import { useValidation } from "./useValidation";

/** Text of a new experiment: the fields that most configurations have. */
const EXAMPLE = `name: my-experiment
model_dir: my-experiment  # The code: a folder beside the file of the DAG dtrain_experiment.
entrypoint: python train.py
hyperparameters:
  lr:
    type: log
    minval: -5
    maxval: -1
  global_batch_size: 64
searcher:
  name: random
  metric: loss
  smaller_is_better: true
  max_trials: 8
resources:
  slots_per_trial: 1
`;

/** Lines before a problem that stay visible above it. */
const LINES_ABOVE = 4;
const LINE_PX = 20;

interface EditorProps {
  /** Text of the fork's source, or of the example. */
  source: string;
  template: string | null;
  forkOf: Experiment | null;
  me: Me | undefined;
}

const whyNot = (me: Me | undefined, isPending: boolean, errors: number, isEmpty: boolean): string | null => {
  if (me !== undefined && !(me.starting.exists && me.starting.may_trigger)) return me.starting.hint;
  if (isEmpty) return "The configuration is empty.";
  if (errors > 0) return `${plural(errors, "error")} in the configuration.`;
  return me === undefined || isPending ? "The configuration is being checked." : null;
};

const startWords = (summary: Validation["summary"]): string =>
  summary === null
    ? "the experiment."
    : [
        `${plural(summary.trials, "trial")} with ${plural(summary.slots_per_trial, "slot")} each in pool ${summary.pool}.`,
        `Code: ${summary.code}`,
        ...(summary.fits ? [] : [summary.fits_reason]),
      ].join(" ");

const goTo = (area: HTMLTextAreaElement | null, text: string, { line, column }: PlacedProblem) => {
  if (area === null) return;
  const before = text.split("\n").slice(0, Math.max(0, line - 1)).join("\n").length + (line > 1 ? 1 : 0);
  area.focus({ preventScroll: true });
  area.setSelectionRange(before + Math.max(0, column - 1), before + Math.max(0, column - 1));
  area.closest("div")?.parentElement?.scrollTo({ top: Math.max(0, (line - 1 - LINES_ABOVE) * LINE_PX) });
};

const Editor = ({ source, template: usual, forkOf, me }: EditorProps) => {
  const fork = forkOf?.experiment_id ?? null;
  const [text, setText] = useState(() => draftOf(fork) ?? source);
  const [template, setTemplate] = useState<string | null>(usual);
  const [started, setStarted] = useState<Started | null>(null);
  const templates = useData<Templates>("templates", { everyMs: null });
  const checked = useValidation({ config: text, template, forkOf: fork });
  const area = useRef<HTMLTextAreaElement>(null);
  const helpId = useId();
  const changed = useMemo(() => (forkOf === null ? new Set<number>() : changedLines(source, text)), [forkOf, source, text]);
  useEffect(() => keepDraft(fork, text === source ? null : text), [fork, text, source]);
  const problems = checked.outcome?.problems ?? [];
  const errors = problems.filter(({ severity }) => severity === "error").length;
  const why = whyNot(me, checked.pending, errors, text.trim() === "");
  const { summary } = checked.outcome ?? { summary: null };
  const start = () =>
    ask({
      id: "start", label: "Start", icon: "play", verb: "Start", title: `Start experiment ${summary?.name ?? ""}`,
      text: `A DAG run of ${me?.starting.dag_id ?? ""} starts ${startWords(summary)}`,
      run: async () => {
        const answer = await send<Started>("POST", "experiments", { config: text, template, fork_of: fork });
        setStarted(answer);
        keepDraft(fork, null);
        return answer;
      },
    });
  const names = templates.data?.rows.map(({ name }) => name) ?? [];
  return (
    <>
      {started === null ? null : <StartedNotice started={started} />}
      {checked.error === null ? null : <ErrorNotice error={checked.error} onRetry={checked.retry} what="The configuration cannot be checked" />}
      {me !== undefined && why === me.starting.hint && why !== "" ? <Notice hint={me.starting.hint} status="warning" title="You can edit and check a configuration here, but not start it." /> : null}
      <Flex align="center" gap={3} mb={2} wrap="wrap">
        <HStack gap={2}>
          <Text fontSize="sm">Template</Text>
          <NativeSelect.Root size="sm" width="280px">
            <NativeSelect.Field aria-label="Template" onChange={(event) => setTemplate(event.target.value === "" ? null : event.target.value)} value={template ?? ""}>
              <option value="">as the configuration names it</option>
              {[...new Set([...names, ...(template === null ? [] : [template])])].map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </NativeSelect.Field>
            <NativeSelect.Indicator />
          </NativeSelect.Root>
        </HStack>
        {forkOf === null ? null : (
          <Text fontSize="sm">
            {changed.size === 0 ? "No line differs from the source." : `${plural(changed.size, "line")} ${changed.size === 1 ? "differs" : "differ"} from the source.`}
          </Text>
        )}
        {text === source ? null : (
          <Button onClick={() => setText(source)} size="xs" variant="ghost">
            {forkOf === null ? "Back to the example" : "Back to the source"}
          </Button>
        )}
        <Button colorPalette="brand" disabled={why !== null} marginInlineStart="auto" onClick={start} size="sm" title={why?.replaceAll("`", "") ?? "Start the experiment"}>
          <Icon name="play" /> Start
        </Button>
      </Flex>
      <Grid gap={4} gridTemplateColumns={{ base: "minmax(0, 1fr)", lg: "minmax(0, 1.7fr) minmax(0, 1fr)" }}>
        <div>
          <CodeArea area={area} changed={changed} helpId={helpId} label="Configuration as YAML" onChange={setText} problems={problems} text={text} />
          <Text color="fg.muted" fontSize="xs" id={helpId} mt={1}>
            Tab indents. Escape and then Tab leaves the field.{forkOf === null ? "" : " Lines that differ from the source are blue."} Masked secrets that stay unchanged keep their values.
          </Text>
        </div>
        <Outcome onGo={(problem) => goTo(area.current, text, problem)} outcome={checked.outcome} pending={checked.pending} />
      </Grid>
    </>
  );
};

const ForkEditor = ({ id, me }: { id: string; me: Me | undefined }) => {
  const experiment = useData<Experiment>(`experiments/${id}`, { everyMs: null });
  const source = useData<ForkSource>(`experiments/${id}/fork`, { everyMs: null });
  const error = experiment.error ?? source.error;
  if (experiment.data !== undefined && source.data !== undefined) {
    return (
      <>
        <Text fontSize="sm" mb={2}>
          Fork of <PageLink to={paths.experiment(id)}>experiment {experiment.data.display_name ?? experiment.data.name}</PageLink>
          . The text has what was submitted, without defaults.
          {source.data.payload_digest === null ? "" : ` The fork uses the same code (${source.data.payload_digest.slice(0, 12)}).`}
        </Text>
        {source.data.code_removed ? (
          <Notice
            hint="A fork uses the code that model_dir names now, from the folder of the DAG `dtrain_experiment`. It may differ from the code of the source."
            status="warning"
            title={`The store no longer has the code of experiment ${id}.`}
          />
        ) : null}
        <Editor forkOf={experiment.data} me={me} source={source.data.yaml} template={source.data.template} />
      </>
    );
  }
  if (error !== null) return <ErrorNotice error={error} onRetry={source.refresh} what={`Configuration of experiment ${id}`} />;
  return <Loading lines={10} />;
};

/** Starts an experiment from a configuration that is checked while it is typed. */
export const EditorPage = () => {
  const [search] = useSearchParams();
  const me = useMe();
  const fork = search.get("fork");
  return (
    <>
      <Heading mb={2} size="md">
        {fork === null ? "New experiment" : "Fork an experiment"}
      </Heading>
      {fork !== null && /^\d{1,18}$/.test(fork) ? <ForkEditor id={fork} key={fork} me={me} /> : <Editor forkOf={null} key="new" me={me} source={EXAMPLE} template={null} />}
    </>
  );
};
