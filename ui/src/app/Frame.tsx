import { Center, Flex } from "@chakra-ui/react";
import { type PropsWithChildren, useEffect } from "react";
import { Link } from "react-router-dom";

import { PAGES } from "./pages";
import { ROOT } from "./paths";
import { Shell } from "./Shell";

const Navigation = ({ current }: { current: string | null }) => (
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
);

/** Frame of a page: navigation and title. */
export const Frame = ({ current, title, children }: PropsWithChildren<{ current: string | null; title: string }>) => {
  useEffect(() => {
    const before = document.title;
    document.title = `${title} - DTrain - Airflow`;
    return () => {
      document.title = before;
    };
  }, [title]);
  return <Shell navigation={<Navigation current={current} />}>{children}</Shell>;
};
