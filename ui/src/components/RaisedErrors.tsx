import { Box, chakra, Stack, Text } from "@chakra-ui/react";

import { type RaisedError } from "../api/failures";
import { plural } from "../format/numbers";

const Frame = ({ frame }: { frame: RaisedError["frames"][number] }) => (
  <Box as="li" listStyleType="none" overflowWrap="anywhere" py="1px">
    <chakra.span color="fg.muted">
      {frame.file}:{frame.line}
      {frame.function === "" ? "" : ` in ${frame.function}`}
    </chakra.span>
    {frame.code === "" ? null : <chakra.code display="block" ps={3}>{frame.code}</chakra.code>}
  </Box>
);

/** Errors of a traceback: each with the frames of the user's own code, the innermost one first. */
export const RaisedErrors = ({ raised }: { raised: readonly RaisedError[] }) => (
  <Stack fontFamily="mono" fontSize="sm" gap={2}>
    {raised.map((error, number) => (
      // A chain may have the same error twice.
      <Box key={number}>
        <Text fontWeight="bold" overflowWrap="anywhere" whiteSpace="pre-wrap">
          {number === 0 ? "" : "after "}
          {error.text}
        </Text>
        <Box as="ol" m={0} p={0}>
          {error.frames.map((frame, index) => (
            <Frame frame={frame} key={index} />
          ))}
        </Box>
        {error.library_frames === 0 ? null : (
          <Text color="fg.muted" fontFamily="body" fontSize="xs">
            {plural(error.library_frames, "frame")} of libraries {error.library_frames === 1 ? "is" : "are"} left out.
          </Text>
        )}
      </Box>
    ))}
  </Stack>
);
