import { Center, Flex } from "@chakra-ui/react";
import { type PropsWithChildren, useLayoutEffect } from "react";
import { Link } from "react-router-dom";

import { TitleContext } from "../hooks/useTitle";
import { reveal } from "../lib/reveal";
import { PAGES } from "./pages";
import { ROOT } from "./paths";
import { Shell } from "./Shell";

const Navigation = ({ current }: { current: string | null }) => (
  <Flex aria-label="DTrain" as="nav" borderBottomColor="border.emphasized" borderBottomWidth={1} mb={3} overflowX="auto">
    {PAGES.filter(({ nav }) => nav !== null).map(({ nav, path }) => {
      const isCurrent = current === nav;
      return (
        <Link aria-current={isCurrent ? "page" : undefined} key={path} ref={isCurrent ? reveal : undefined} to={`${ROOT}/${path}`}>
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

const setTitle = (title: string) => {
  document.title = `${title} - DTrain - Airflow`;
};

/** Frame of a page: navigation and title. */
export const Frame = ({ current, title, children }: PropsWithChildren<{ current: string | null; title: string }>) => {
  // Before the effects of the page, which knows the name of its object.
  useLayoutEffect(() => {
    const before = document.title;
    setTitle(title);
    return () => {
      document.title = before;
    };
  }, [title]);
  return (
    <TitleContext value={setTitle}>
      <Shell navigation={<Navigation current={current} />}>{children}</Shell>
    </TitleContext>
  );
};
