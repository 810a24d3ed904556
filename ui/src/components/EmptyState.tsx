import { Code, HStack, Stack, Text } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { CopyButton } from "./CopyButton";

interface Props {
  title: string;
  text?: ReactNode;
  /** Command that leads to something to see. */
  command?: string;
  children?: ReactNode;
}

/** Shown instead of an empty table or chart: tells why it is empty, and the next command. */
export const EmptyState = ({ title, text, command, children }: Props) => (
  <Stack align="center" color="fg.muted" data-testid="empty-state" gap={3} px={4} py={10} textAlign="center">
    <Text color="fg" fontWeight="bold">
      {title}
    </Text>
    {text === undefined ? null : <Text maxW="60ch">{text}</Text>}
    {command === undefined ? null : (
      <HStack maxW="100%">
        <Code overflowX="auto" px={3} py={2} size="md" tabIndex={0} whiteSpace="pre">
          {command}
        </Code>
        <CopyButton label="Copy the command" text={command} />
      </HStack>
    )}
    {children}
  </Stack>
);
