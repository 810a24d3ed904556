import { Alert, Button, Code } from "@chakra-ui/react";
import { Fragment } from "react";

/** Show a text in which `commands` stand between backticks. */
export const Words = ({ text }: { text: string }) => (
  <>
    {text.split("`").map((piece, index) => (
      // Each odd piece stood between backticks.
      <Fragment key={index}>{index % 2 === 1 ? <Code overflowWrap="anywhere">{piece}</Code> : piece}</Fragment>
    ))}
  </>
);

interface Props {
  title: string;
  hint?: string | null;
  status?: "error" | "info" | "warning" | "success";
  action?: { label: string; onClick: () => void } | undefined;
}

/** A message in the page, with the next step. */
export const Notice = ({ title, hint, status = "info", action }: Props) => (
  <Alert.Root my={2} overflowWrap="anywhere" role={status === "error" ? "alert" : "status"} status={status}>
    <Alert.Indicator />
    <Alert.Content>
      <Alert.Title>{title}</Alert.Title>
      {hint === null || hint === undefined || hint === "" ? null : (
        <Alert.Description>
          <Words text={hint} />
        </Alert.Description>
      )}
    </Alert.Content>
    {action === undefined ? null : (
      <Button alignSelf="center" onClick={action.onClick} size="sm" variant="outline">
        {action.label}
      </Button>
    )}
  </Alert.Root>
);
