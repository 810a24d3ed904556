import { type PropsWithChildren, type ReactNode } from "react";

type Props = PropsWithChildren<{
  stale: boolean;
  /** Why the server cannot confirm them. It is above the data, and not dimmed. */
  notice?: ReactNode;
}>;

/** Dims data that an earlier request has brought, or that the server cannot confirm at the moment, see `styles.css`. */
export const Stale = ({ stale, notice = null, children }: Props) => (
  <>
    {notice}
    <div data-stale={stale || undefined}>{children}</div>
  </>
);
