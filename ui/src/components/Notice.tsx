import { Alert, Button, Code, HStack } from "@chakra-ui/react";
import { Fragment, type ReactNode } from "react";

import { nextStep } from "../lib/nextStep";
import { CopyButton } from "./CopyButton";
import { PageLink } from "./Links";

/** Show a text in which `commands` stand between backticks. */
export const Words = ({ text }: { text: string }) => (
  <>
    {text.split("`").map((piece, index) => (
      // Each odd piece stood between backticks.
      <Fragment key={index}>{index % 2 === 1 ? <Code overflowWrap="anywhere">{piece}</Code> : piece}</Fragment>
    ))}
  </>
);

/** The next step: a text, and the command that it ends with, to copy. */
const NextStep = ({ hint }: { hint: string }) => {
  const { text, command, page } = nextStep(hint);
  return (
    <>
      <Words text={text} />
      {page === null ? null : (
        <>
          {" "}
          <PageLink to={page.to}>{page.text}</PageLink>
        </>
      )}
      {command === null ? null : (
        <HStack as="span" display="inline-flex" gap={1} maxW="100%" ms={1} verticalAlign="middle">
          <Code overflowWrap="anywhere">{command}</Code>
          <CopyButton label="Copy the command" text={command} />
        </HStack>
      )}
    </>
  );
};

interface Props {
  title: string;
  hint?: string | null;
  status?: "error" | "info" | "warning" | "success";
  action?: { label: string; onClick: () => void } | undefined;
  /** Links below the next step. */
  children?: ReactNode;
}

/** A message in the page, with the next step. */
export const Notice = ({ title, hint, status = "info", action, children }: Props) => (
  <Alert.Root flexWrap={{ base: "wrap", sm: "nowrap" }} my={2} overflowWrap="anywhere" role={status === "error" ? "alert" : "status"} status={status}>
    <Alert.Indicator />
    <Alert.Content>
      <Alert.Title>{title}</Alert.Title>
      {hint === null || hint === undefined || hint === "" ? null : (
        <Alert.Description>
          <NextStep hint={hint} />
        </Alert.Description>
      )}
      {children}
    </Alert.Content>
    {action === undefined ? null : (
      <Button alignSelf="center" onClick={action.onClick} size="sm" variant="outline">
        {action.label}
      </Button>
    )}
  </Alert.Root>
);
