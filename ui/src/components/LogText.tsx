import { chakra } from "@chakra-ui/react";

/** Lines of a log or of a traceback, which scroll in a box of their own. */
export const LogText = ({ label, text, maxH = "22rem" }: { label: string; text: string; maxH?: string }) => (
  <chakra.pre
    aria-label={label}
    bg="bg.muted"
    fontFamily="mono"
    fontSize="xs"
    maxH={maxH}
    overflow="auto"
    p={2}
    role="region"
    tabIndex={0}
    whiteSpace="pre-wrap"
    wordBreak="break-word"
  >
    {text}
  </chakra.pre>
);
