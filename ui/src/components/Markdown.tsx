import { Box, chakra, Code, Heading, Link, List, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";

import { type Block, type Inline, markdownOf } from "../lib/markdown";

const Parts = ({ parts }: { parts: readonly Inline[] }) => (
  <>
    {parts.map((part, index) => {
      if (part.kind === "text") return part.text;
      if (part.kind === "code") return <Code key={index}>{part.text}</Code>;
      if (part.kind === "link") {
        return (
          <Link href={part.href} key={index} rel="noopener noreferrer nofollow" target="_blank" textDecoration="underline" title={part.href}>
            <Parts parts={part.parts} />
          </Link>
        );
      }
      const inner = <Parts parts={part.parts} />;
      return part.kind === "strong" ? <strong key={index}>{inner}</strong> : <em key={index}>{inner}</em>;
    })}
  </>
);

const Blocks = ({ blocks }: { blocks: readonly Block[] }) => (
  <>
    {blocks.map((block, index) => {
      switch (block.kind) {
        case "paragraph":
          return (
            <Text key={index} whiteSpace="pre-wrap">
              <Parts parts={block.parts} />
            </Text>
          );
        case "heading":
          // The page itself has the larger headings.
          return (
            <Heading as={block.level < 3 ? "h3" : "h4"} key={index} size={block.level === 1 ? "md" : "sm"}>
              <Parts parts={block.parts} />
            </Heading>
          );
        case "list":
          return (
            <List.Root as={block.ordered ? "ol" : "ul"} key={index} ps={5}>
              {block.items.map((parts, place) => (
                <List.Item key={place}>
                  <Parts parts={parts} />
                </List.Item>
              ))}
            </List.Root>
          );
        case "quote":
          return (
            <Box as="blockquote" borderColor="border" borderStartWidth={3} color="fg.muted" key={index} ps={3}>
              <Blocks blocks={block.blocks} />
            </Box>
          );
        case "code":
          return (
            <chakra.pre bg="bg.muted" borderRadius="sm" fontSize="xs" key={index} overflowX="auto" p={2} tabIndex={0}>
              {block.text}
            </chakra.pre>
          );
        default:
          return <chakra.hr borderColor="border" key={index} />;
      }
    })}
  </>
);

/** A text of a user in a part of Markdown. It becomes elements of React: no markup of the text reaches the document. */
export const Markdown = ({ text }: { text: string }) => {
  const blocks = useMemo(() => markdownOf(text), [text]);
  return (
    <Stack data-testid="markdown" fontSize="sm" gap={2} maxW="80ch" overflowWrap="anywhere" unicodeBidi="isolate">
      <Blocks blocks={blocks} />
    </Stack>
  );
};
