import { Tabs } from "@chakra-ui/react";
import { type ReactNode } from "react";

import { ErrorBoundary } from "../app/ErrorBoundary";
import { reveal } from "../lib/reveal";

export interface PageTab {
  id: string;
  label: string;
  content: () => ReactNode;
}

interface Props {
  tabs: readonly PageTab[];
  value: string;
  onChange: (id: string) => void;
}

/** Parts of a page. The chosen one is in the address; a tab of an older link shows the first part. */
export const PageTabs = ({ tabs, value, onChange }: Props) => {
  const chosen = tabs.some(({ id }) => id === value) ? value : (tabs[0]?.id ?? "");
  return (
    <Tabs.Root colorPalette="brand" lazyMount onValueChange={(next) => onChange(next.value)} size="sm" unmountOnExit value={chosen} variant="line">
      <Tabs.List overflowX="auto" overflowY="hidden">
        {tabs.map(({ id, label }) => (
          <Tabs.Trigger flexShrink={0} key={id} ref={id === chosen ? reveal : undefined} value={id}>
            {label}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      {tabs.map(({ id, label, content }) => (
        <Tabs.Content key={id} px={0} value={id}>
          <ErrorBoundary what={`"${label}"`}>{id === chosen ? content() : null}</ErrorBoundary>
        </Tabs.Content>
      ))}
    </Tabs.Root>
  );
};
