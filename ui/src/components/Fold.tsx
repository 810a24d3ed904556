import { chakra } from "@chakra-ui/react";
import { type PropsWithChildren } from "react";

import { useIsNarrow } from "../hooks/useIsNarrow";

/** Content that a phone shows only on request. */
export const Fold = ({ title, children }: PropsWithChildren<{ title: string }>) => {
  const isNarrow = useIsNarrow();
  if (!isNarrow) return <>{children}</>;
  return (
    <chakra.details mb={2}>
      <chakra.summary color="fg.muted" cursor="pointer" fontSize="sm" py={1}>
        {title}
      </chakra.summary>
      {children}
    </chakra.details>
  );
};
