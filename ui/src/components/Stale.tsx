import { Box } from "@chakra-ui/react";
import { type PropsWithChildren, type ReactNode } from "react";

type Props = PropsWithChildren<{
  stale: boolean;
  /** Why the server cannot confirm them. It is above the data, and not dimmed. */
  notice?: ReactNode;
}>;

/** Dims data that an earlier request has brought, or that the server cannot confirm at the moment. */
export const Stale = ({ stale, notice = null, children }: Props) => (
  <>
    {notice}
    <Box data-stale={stale || undefined} opacity={stale ? 0.6 : 1} transition="opacity 0.2s">
      {children}
    </Box>
  </>
);
