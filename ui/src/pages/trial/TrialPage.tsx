import { ActionButtons } from "../../actions/ActionButtons";
import { trialActions } from "../../actions/trials";
import { cached } from "../../api/cache";
import { useEarly } from "../../api/early";
import { type Experiment } from "../../api/experiment";
import { type Trial } from "../../api/trial";
import { CommentsTab } from "../../comments/CommentsTab";
import { EmptyState } from "../../components/EmptyState";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { PageTabs } from "../../components/PageTabs";
import { PageTitle } from "../../components/PageTitle";
import { Stale } from "../../components/Stale";
import { LIVE_MS, useData } from "../../hooks/useData";
import { useMe } from "../../hooks/useMe";
import { useTitle } from "../../hooks/useTitle";
import { useUrlState } from "../../hooks/useUrlState";
import { shownState } from "../../lib/states";
import { CodeTab } from "../code/CodeTab";
import { ConfigView } from "../experiment/ConfigView";
import { FailureTab, failurePath } from "./FailureTab";
import { FilesTab } from "./FilesTab";
import { LogTab } from "./log/LogTab";
import { MediaTab } from "./MediaTab";
import { ProfileTab } from "./ProfileTab";
import { RanksTab } from "./RanksTab";
import { ReproductionFacts } from "./ReproductionFacts";
import { ShardsTab } from "./ShardsTab";
import { stepTimesPath } from "./StepTimesSection";
import { timingsPath } from "./TimingsSection";
import { TrainingTab } from "./TrainingTab";
import { TrialFacts, TrialNotices } from "./TrialFacts";
import { ENDED } from "./words";

/** Without a tab in the address the first one is shown. */
const USUAL = { tab: "" };

/** One trial, with everything that its tabs show. */
export const TrialView = ({ id }: { id: string }) => {
  const path = `trials/${id}`;
  const [view, setView] = useUrlState(USUAL);
  const known = cached<Trial>(path)?.data;
  const hasFailed = known?.state === "errored" && known.failure !== null;
  const isTraining = view.tab === "training" || (view.tab === USUAL.tab && known?.is_inference !== true && !hasFailed);
  useEarly(hasFailed && view.tab === USUAL.tab ? failurePath(id) : null);
  useEarly(isTraining ? `${path}/timeline` : null);
  useEarly(isTraining ? timingsPath(id, null) : null);
  useEarly(isTraining ? stepTimesPath(id, null) : null);
  const me = useMe();
  const isLive = known === undefined || !ENDED.has(known.state);
  const { data, error, loading, stale, refresh } = useData<Trial>(path, { everyMs: isLive ? LIVE_MS : null });
  const experiment = useData<Experiment>(data === undefined ? null : `experiments/${data.experiment_id}`, { everyMs: null }).data;
  const title = data === undefined ? "" : `${data.experiment}, trial ${id}`;
  useTitle(title === "" ? null : title);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={`Trial ${id}`} />;
  const isGone = error?.status === 404;
  const mayEdit = data.may_edit && !isGone;
  const actions = trialActions({
    trial_id: data.trial_id, name: `trial ${id}`, state: data.state, paused: data.state === "paused", priority: data.priority, may_edit: mayEdit,
    may_change_priority: me?.may_change_hosts === true && !isGone && data.queue_class !== null,
  });
  // A failed trial opens on its cause, and its facts come after it.
  const isFailed = data.state === "errored" && data.failure !== null;
  const opensOnCause = isFailed && (view.tab === USUAL.tab || view.tab === "failure");
  const facts = <TrialFacts metric={experiment?.metric ?? null} trial={data} />;
  const tabs = [
    ...(isFailed ? [{ id: "failure", label: "Failure", content: () => <FailureTab trial={data} /> }] : []),
    ...(data.is_inference ? [{ id: "shards", label: "Results and shards", content: () => <ShardsTab trial={data} /> }] : []),
    { id: "training", label: data.is_inference ? "Metrics and timings" : "Training", content: () => <TrainingTab metric={experiment?.metric ?? null} trial={data} /> },
    { id: "media", label: "Media", content: () => <MediaTab trial={data} /> },
    { id: "log", label: "Logs", content: () => <LogTab trial={data} /> },
    { id: "ranks", label: "Ranks", content: () => <RanksTab trial={data} /> },
    { id: "files", label: data.is_inference ? "Files" : "Checkpoints and outputs", content: () => <FilesTab trial={data} /> },
    { id: "comments", label: "Comments", content: () => <CommentsTab path={path} words={`trial ${id}`} /> },
    { id: "profile", label: "Profile", content: () => <ProfileTab trial={data} /> },
    { id: "code", label: "Code", content: () => <CodeTab id={id} kind="trial" /> },
    { id: "config", label: "Configuration", content: () => <ConfigView path={`${path}/config`} /> },
  ];
  return (
    <>
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} wasKnown what={`Trial ${id}`} />}
      <Stale stale={stale}>
        <PageTitle heading={title} labels={data} mayEdit={mayEdit} onEdited={refresh} path={path} state={shownState(data)} words={`trial ${id}`}>
          <ActionButtons actions={actions} label={`Actions of trial ${id}`} onDone={refresh} />
        </PageTitle>
        <TrialNotices trial={data} />
        {opensOnCause ? null : facts}
        <ReproductionFacts trialId={data.trial_id} />
      </Stale>
      <PageTabs onChange={(tab) => setView({ tab })} tabs={tabs} value={view.tab} />
      {opensOnCause ? <Stale stale={stale}>{facts}</Stale> : null}
    </>
  );
};

/** Page of one trial. */
export const TrialPage = ({ id = "" }: Record<string, string>) =>
  /^\d{1,18}$/.test(id) ? <TrialView id={id} key={id} /> : <EmptyState title={`"${id}" is no number of a trial.`} />;
