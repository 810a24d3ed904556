import { Button } from "@chakra-ui/react";
import { useNavigate } from "react-router-dom";

import { ActionButtons } from "../../actions/ActionButtons";
import { experimentActions, experimentState, isOpen } from "../../actions/experiments";
import { cached } from "../../api/cache";
import { useEarly } from "../../api/early";
import { type Experiment } from "../../api/experiment";
import { paths } from "../../app/paths";
import { CommentsTab } from "../../comments/CommentsTab";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Icon } from "../../components/icons";
import { Loading } from "../../components/Loading";
import { PageTabs } from "../../components/PageTabs";
import { PageTitle } from "../../components/PageTitle";
import { Stale } from "../../components/Stale";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useMe } from "../../hooks/useMe";
import { useTitle } from "../../hooks/useTitle";
import { useUrlState } from "../../hooks/useUrlState";
import { CodeTab } from "../code/CodeTab";
import { ConfigView } from "./ConfigView";
import { CurvesTab, useUsualCurvesPath } from "./CurvesTab";
import { ExperimentFacts } from "./ExperimentFacts";
import { failedOf, FailuresNotice, FailuresTab, haveMostFailed } from "./FailuresTab";
import { HyperparametersTab, hyperparametersPath } from "./HyperparametersTab";
import { RungsTab } from "./RungsTab";
import { TimelineTab, timelinePath } from "./TimelineTab";
import { TrialsTab } from "./TrialsTab";

/** Without a tab in the address the first one is shown. */
const USUAL = { tab: "", by: "" };

/** Return the path of the answer that a tab shows, or null for a tab whose path depends on the experiment. */
const usePathOfTab = (id: string, tab: string, by: string): string | null => {
  const [curves, path] = [useUsualCurvesPath(id), `experiments/${id}`];
  if (tab === "curves" || tab === USUAL.tab) return curves;
  if (tab === "timeline") return timelinePath(path);
  if (tab === "hyperparameters") return hyperparametersPath(path, by);
  return tab === "rungs" || tab === "config" ? `${path}/${tab}` : null;
};

/** Period of an experiment that has ended, in milliseconds: only its labels change. */
const ENDED_MS = 30_000;

const ForkButton = ({ experiment }: { experiment: Experiment }) => {
  const navigate = useNavigate();
  const me = useMe();
  const { possible, reason } = experiment.fork;
  const starting = me?.starting;
  const why = !possible ? reason : starting !== undefined && !(starting.exists && starting.may_trigger) ? starting.hint : "";
  return (
    <Button
      disabled={!possible || why !== ""}
      onClick={() => void navigate(paths.start(experiment.experiment_id))}
      size="sm"
      title={why === "" ? "Start another experiment from this configuration" : why.replaceAll("`", "")}
      variant="outline"
    >
      <Icon name="copy" /> Fork
    </Button>
  );
};

/** One experiment, with everything that its tabs show. A tab of a DAG run shows it without the page's navigation. */
export const ExperimentView = ({ id }: { id: string }) => {
  const path = `experiments/${id}`;
  const [view, setView] = useUrlState(USUAL);
  useEarly(usePathOfTab(id, view.tab, view.by));
  const navigate = useNavigate();
  const mayChangePriority = useMe()?.may_change_hosts ?? false;
  const isLive = isOpen(cached<Experiment>(path)?.data ?? { state: "" });
  const { data, error, loading, stale, refresh } = useData<Experiment>(path, { everyMs: isLive ? LIVE_MS : ENDED_MS });
  useTitle(data === undefined ? null : `${data.display_name ?? data.name} (experiment ${id})`);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={`Experiment ${id}`} />;
  // Actions on an experiment that the store lacks could only fail.
  const isGone = error?.status === 404;
  const actions = isGone ? [] : experimentActions(data, mayChangePriority);
  const failures = failedOf(data.trials) === 0 ? [] : [{ id: "failures", label: "Failures", content: () => <FailuresTab experiment={data} /> }];
  const isBroken = haveMostFailed(data.trials);
  const curves = { id: "curves", label: "Curves", content: () => <CurvesTab experiment={data} /> };
  const trials = { id: "trials", label: "Trials", content: () => <TrialsTab experiment={data} /> };
  const tabs = [
    ...(isBroken ? failures : []),
    ...(data.is_inference ? [trials, ...(data.metrics.length === 0 ? [] : [curves])] : [curves, trials]),
    ...(data.is_inference ? [] : [{ id: "hyperparameters", label: "Hyperparameters", content: () => <HyperparametersTab experiment={data} /> }]),
    ...(data.search === null ? [] : [{ id: "rungs", label: "Rungs", content: () => <RungsTab experiment={data} /> }]),
    ...(isBroken ? [] : failures),
    { id: "comments", label: "Comments", content: () => <CommentsTab path={path} words={`experiment ${id}`} /> },
    { id: "timeline", label: "Timeline", content: () => <TimelineTab experiment={data} /> },
    { id: "code", label: "Code", content: () => <CodeTab id={id} kind="experiment" /> },
    { id: "config", label: "Configuration", content: () => <ConfigView path={`${path}/config`} /> },
  ];
  return (
    <>
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} wasKnown what={`Experiment ${id}`} />}
      <Stale stale={stale}>
        <PageTitle
          labels={data}
          mayEdit={data.may_edit && !isGone}
          onEdited={refresh}
          onTag={(tag) => void navigate(`${paths.experiments}?tag=${encodeURIComponent(tag)}`)}
          path={path}
          state={experimentState(data)}
          words={`experiment ${id}`}
        >
          <ActionButtons actions={actions} label={`Actions of experiment ${data.name}`} onDone={refresh} />
          {isGone ? null : <ForkButton experiment={data} />}
        </PageTitle>
        <FailuresNotice experiment={data} />
        <ExperimentFacts experiment={data} />
      </Stale>
      <PageTabs onChange={(tab) => setView({ tab })} tabs={tabs} value={view.tab} />
    </>
  );
};

/** Page of one experiment. */
export const ExperimentPage = ({ id = "" }: Record<string, string>) =>
  /^\d{1,18}$/.test(id) ? <ExperimentView id={id} key={id} /> : <EmptyState title={`"${id}" is no number of an experiment.`} />;
