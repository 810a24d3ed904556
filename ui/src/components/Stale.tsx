import { Box } from "@chakra-ui/react";
import { type PropsWithChildren } from "react";

/** Dims data that an earlier request has brought, or that the server cannot confirm at the moment. */
export const Stale = ({ stale, children }: PropsWithChildren<{ stale: boolean }>) => (
  <Box data-stale={stale || undefined} opacity={stale ? 0.6 : 1} transition="opacity 0.2s">
    {children}
  </Box>
);
