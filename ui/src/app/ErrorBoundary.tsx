import { Component, type ErrorInfo, type PropsWithChildren } from "react";

import { Notice } from "../components/Notice";

/** Shows an explanation where a page or a part of it fails, so that the rest of the Airflow UI stays usable. */
export class ErrorBoundary extends Component<PropsWithChildren<{ what?: string }>, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(thrown: unknown) {
    return { error: thrown instanceof Error ? thrown : new Error(String(thrown)) };
  }

  override componentDidCatch(error: Error, info: ErrorInfo) {
    // eslint-disable-next-line no-console -- a defect of ours; the browser's console has the place.
    console.warn("DTrain:", error.message, info.componentStack);
  }

  override render() {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return (
      <Notice
        action={{ label: "Show again", onClick: () => this.setState({ error: null }) }}
        hint={`If it happens again, the API server and the pages may have different versions. The pages are of version ${__VERSION__}. Reload the browser's tab, and restart \`airflow api-server\` after an upgrade of the provider.`}
        status="error"
        title={`${this.props.what ?? "This page"} cannot be shown: ${error.message}`}
      />
    );
  }
}
