import { Box, chakra, Flex, Stack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { withQuery } from "../../api/client";
import { type CodeFile, type CodeListing, type CodeText } from "../../api/code";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Loading } from "../../components/Loading";
import { SearchBar } from "../../components/SearchBar";
import { bytes, count, plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { visible, visibleFile } from "../../lib/visible";

/** Files in the list. A search finds the others. */
const MOST = 300;

/** The file that is shown first: a usual name of a script, else the first text. */
const firstOf = (files: readonly CodeFile[]): string => {
  const texts = files.filter(({ kind }) => kind === "text");
  const script = texts.find(({ path }) => /^(train|main|model|model_def)\.py$/.test(path)) ?? texts.find(({ path }) => !path.includes("/") && path.endsWith(".py"));
  return (script ?? texts[0])?.path ?? "";
};

const noteOf = ({ kind, size_bytes, target, is_program }: CodeFile): string => {
  if (target !== null) return `link to ${visible(target)}`;
  const size = size_bytes === null ? "" : bytes(size_bytes);
  return [kind === "binary" ? "binary" : "", size, is_program ? "program" : ""].filter((part) => part !== "").join(", ");
};

const FileText = ({ trialId, path }: { trialId: number; path: string }) => {
  const { data, error, loading, refresh } = useData<CodeText>(withQuery(`trials/${trialId}/code/text`, { file: path }), { everyMs: null });
  const text = useMemo(() => (data === undefined ? "" : visibleFile(data.text.replace(/\n$/, ""))), [data]);
  const numbers = useMemo(() => Array.from({ length: text.split("\n").length }, (_, index) => index + 1).join("\n"), [text]);
  if (loading) return <Loading lines={8} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={visible(path)} />;
  return (
    <>
      <Flex aria-label={`Text of ${visible(path)}`} borderColor="border" borderRadius="md" borderWidth={1} fontFamily="mono" fontSize="13px" lineHeight="20px" maxH="70vh" overflow="auto" role="region" tabIndex={0}>
        <chakra.pre aria-hidden="true" bg="bg" borderColor="border" borderRightWidth={1} color="fg.muted" flexShrink={0} insetInlineStart={0} m={0} minH="fit-content" minW="3.5em" position="sticky" px={2} py={1} textAlign="end" userSelect="none">
          {numbers}
        </chakra.pre>
        <chakra.pre flexGrow={1} m={0} minH="fit-content" px={3} py={1} style={{ tabSize: 4 }}>
          {text}
        </chakra.pre>
      </Flex>
      {data.is_whole ? null : (
        <Text color="fg.muted" fontSize="xs" mt={1}>
          The first {bytes(data.text.length)} of {bytes(data.size_bytes)} are shown.
        </Text>
      )}
    </>
  );
};

interface Props {
  listing: CodeListing;
  file: string;
  onFile: (path: string) => void;
}

/** Files of packed code, and the text of one of them. */
export const CodeFiles = ({ listing: { files, more, reason, is_readable, trial_id }, file, onFile }: Props) => {
  const [text, setText] = useState("");
  const found = useMemo(() => files.filter(({ path }) => path.toLowerCase().includes(text.toLowerCase())), [files, text]);
  const chosen = useMemo(() => {
    const wanted = files.some(({ path }) => path === file) ? file : firstOf(files);
    return files.find(({ path }) => path === wanted);
  }, [files, file]);
  if (files.length === 0) return <Text color="fg.muted">{reason === "" ? "The code has no files." : reason}</Text>;
  return (
    <>
      {reason === "" ? null : <Text color="fg.muted">{reason} Only the names of its files are known.</Text>}
      <Flex direction={{ base: "column", md: "row" }} gap={3}>
        <Stack flexShrink={0} gap={1} width={{ base: "100%", md: "280px" }}>
          {files.length > 12 ? <SearchBar onChange={setText} placeholder="Search for a file" value={text} /> : null}
          <Box aria-label="Files" as="nav" borderColor="border" borderRadius="md" borderWidth={1} maxH={{ base: "30vh", md: "66vh" }} overflow="auto">
            {found.slice(0, MOST).map((one) => (
              <chakra.button
                _focusVisible={{ outline: "2px solid", outlineColor: "brand.focusRing", outlineOffset: "-2px" }}
                _hover={{ bg: "bg.muted" }}
                aria-current={one === chosen}
                bg={one === chosen ? "bg.emphasized" : undefined}
                cursor={one.kind === "text" ? "pointer" : "default"}
                disabled={one.kind !== "text"}
                display="block"
                key={one.path}
                onClick={() => onFile(one.path)}
                overflowWrap="anywhere"
                px={2}
                py={0.5}
                textAlign="start"
                type="button"
                width="100%"
              >
                <chakra.span fontFamily="mono" fontSize="sm">
                  {visible(one.path)}
                </chakra.span>
                <chakra.span color="fg.muted" fontSize="xs" ms={2}>
                  {noteOf(one)}
                </chakra.span>
              </chakra.button>
            ))}
          </Box>
          {found.length > MOST || more > 0 ? (
            <Text color="fg.muted" fontSize="xs">
              {count(Math.min(MOST, found.length))} of {plural(files.length + more, "file")} are shown.
            </Text>
          ) : null}
        </Stack>
        <Box flexGrow={1} minW={0}>
          {chosen === undefined || chosen.kind !== "text" || !is_readable ? (
            <Text color="fg.muted">{is_readable ? "Choose a text file to read it." : ""}</Text>
          ) : (
            <FileText key={chosen.path} path={chosen.path} trialId={trial_id} />
          )}
        </Box>
      </Flex>
    </>
  );
};
