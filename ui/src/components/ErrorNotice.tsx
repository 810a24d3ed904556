import { type ApiError } from "../api/client";
import { paths } from "../app/paths";
import { nextStep, nextStepText } from "../lib/nextStep";
import { PageLink } from "./Links";
import { Notice } from "./Notice";

const logIn = () => {
  const { pathname, search, hash } = window.location;
  const url = new URL("api/v2/auth/login", document.baseURI);
  url.searchParams.set("next", pathname + search + hash);
  window.location.assign(url.href);
};

interface Props {
  error: ApiError;
  what: string;
  onRetry?: () => void;
  /** The page shows what an earlier answer said of it. */
  wasKnown?: boolean;
}

const GONE = "The store had it before, so it was restored from an older backup or replaced. Below is what it said last.";

/** Tells why data of the API is missing, and the next step. */
export const ErrorNotice = ({ error, what, onRetry, wasKnown = false }: Props) => {
  if (error.status === 401) {
    return <Notice action={{ label: "Log in", onClick: logIn }} status="warning" title="Your session has ended. Log in again." />;
  }
  if (error.status === 404 && error.code === "not_found" && error.details === null) {
    return (
      <Notice
        hint={`The API server may have another version of the provider than these pages (${__VERSION__}). Restart \`airflow api-server\` after an upgrade, and reload the browser's tab.`}
        status="error"
        title={`${what}: the API server does not know this route.`}
      />
    );
  }
  const waits = error.passes ? "The page asks again by itself. " : "";
  const gone = wasKnown && error.status === 404 ? `${GONE} ` : "";
  return (
    <Notice
      action={onRetry === undefined ? undefined : { label: "Ask again", onClick: onRetry }}
      hint={`${gone}${waits}${nextStepText(error.hint ?? "")}`.trim()}
      status={error.status === 403 || error.passes ? "warning" : "error"}
      title={`${what}: ${error.message}`}
    >
      {error.status === 404 && nextStep(error.hint ?? "").page === null ? <PageLink to={paths.experiments}>All experiments, with their trials</PageLink> : null}
    </Notice>
  );
};
