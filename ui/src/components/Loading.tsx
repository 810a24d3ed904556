import { Skeleton, Stack } from "@chakra-ui/react";

/** Placeholder while the first data of a page are on their way. */
export const Loading = ({ lines = 4 }: { lines?: number }) => (
  <Stack aria-label="Loading" gap={3} py={2} role="status">
    {Array.from({ length: lines }, (_, index) => (
      <Skeleton height="6" key={index} width={`${90 - 15 * (index % 3)}%`} />
    ))}
  </Stack>
);
