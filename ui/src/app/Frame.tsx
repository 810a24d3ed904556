import { Box, Center, Flex } from "@chakra-ui/react";
import { type PropsWithChildren, useEffect } from "react";
import { Link } from "react-router-dom";

import { ActionDialog } from "../actions/ActionDialog";
import { Notice } from "../components/Notice";
import { Toaster } from "../components/toaster";
import { useMe } from "../hooks/useMe";
import { ErrorBoundary } from "./ErrorBoundary";
import { PAGES } from "./pages";
import { ROOT } from "./paths";

/** Tells that the API server and the bundle of the browser's tab are of different versions of the provider. */
const VersionNotice = () => {
  const version = useMe()?.version;
  if (version === undefined || version === __VERSION__) return null;
  return (
    <Notice
      action={{ label: "Reload", onClick: () => window.location.reload() }}
      hint="If the message stays after a reload, restart `airflow api-server`."
      status="warning"
      title={`These pages are of version ${__VERSION__} of the provider, the API server has version ${version}.`}
    />
  );
};

/** Frame of a page: navigation, messages, and an explanation instead of a page that fails. */
export const Frame = ({ current, title, children }: PropsWithChildren<{ current: string | null; title: string }>) => {
  useEffect(() => {
    const before = document.title;
    document.title = `${title} - DTrain - Airflow`;
    return () => {
      document.title = before;
    };
  }, [title]);
  return (
    <Box data-testid="dtrain" minW={0} p={2}>
      <Flex aria-label="DTrain" as="nav" borderBottomColor="border.emphasized" borderBottomWidth={1} mb={3} overflowX="auto">
        {PAGES.filter(({ nav }) => nav !== null).map(({ nav, path }) => {
          const isCurrent = current === nav;
          return (
            <Link aria-current={isCurrent ? "page" : undefined} key={path} to={`${ROOT}/${path}`}>
              <Center
                _hover={{ color: "fg" }}
                borderBottomColor="border.info"
                borderBottomWidth={isCurrent ? 3 : 0}
                color={isCurrent ? "fg" : "fg.muted"}
                fontWeight="bold"
                height="40px"
                mb="-2px"
                pb={isCurrent ? 0 : "3px"}
                px={4}
              >
                {nav}
              </Center>
            </Link>
          );
        })}
      </Flex>
      <VersionNotice />
      <ErrorBoundary>{children}</ErrorBoundary>
      <ActionDialog />
      <Toaster />
    </Box>
  );
};
