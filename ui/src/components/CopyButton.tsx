import { IconButton } from "@chakra-ui/react";
import { useEffect, useState } from "react";

import { Icon } from "./icons";

const SHOWN_MS = 1_500;

/** Copies a text to the clipboard. Browsers without a clipboard (pages without HTTPS) show the text to copy by hand. */
export const CopyButton = ({ text, label = "Copy" }: { text: string; label?: string }) => {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      window.prompt("Copy:", text);
    }
  };
  return (
    <IconButton aria-label={copied ? "Copied" : label} onClick={() => void copy()} size="xs" title={copied ? "Copied" : label} variant="ghost">
      <Icon name={copied ? "check" : "copy"} />
    </IconButton>
  );
};
