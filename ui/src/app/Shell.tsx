import { Box } from "@chakra-ui/react";
import { type PropsWithChildren, type ReactNode } from "react";

import { ActionDialog } from "../actions/ActionDialog";
import { Notice } from "../components/Notice";
import { Toaster } from "../components/toaster";
import { MeContext, useMeData } from "../hooks/useMe";
import { ErrorBoundary } from "./ErrorBoundary";

/** Tells that the API server and the bundle of the browser's tab are of different versions of the provider. */
const VersionNotice = ({ version }: { version: string | undefined }) =>
  version === undefined || version === __VERSION__ ? null : (
    <Notice
      action={{ label: "Reload", onClick: () => window.location.reload() }}
      hint="If the message stays after a reload, restart `airflow api-server`."
      status="warning"
      title={`These pages are of version ${__VERSION__} of the provider, the API server has version ${version}.`}
    />
  );

/** Surroundings of a page and of a tab: permissions, dialogs, messages, and an explanation instead of a part that fails. */
export const Shell = ({ navigation, children }: PropsWithChildren<{ navigation?: ReactNode }>) => {
  const me = useMeData();
  return (
    <MeContext value={me}>
      <Box data-testid="dtrain" minW={0} p={2}>
        {navigation}
        <VersionNotice version={me?.version} />
        <ErrorBoundary>{children}</ErrorBoundary>
        <ActionDialog />
        <Toaster />
      </Box>
    </MeContext>
  );
};
