import { CloseButton, Input, InputGroup } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";

import { Icon } from "./icons";

const PAUSE_MS = 250;

interface Props {
  value: string;
  onChange: (value: string) => void;
  placeholder: string;
  width?: string;
}

/** Search field. The change is reported after a short pause of the keys, or at once by Enter. */
export const SearchBar = ({ value, onChange, placeholder, width = "280px" }: Props) => {
  const [text, setText] = useState(value);
  const [known, setKnown] = useState(value);
  /** The text that was reported last. When it comes back as the value, the user may have typed more. */
  const [sent, setSent] = useState<string | null>(null);
  if (known !== value) {
    setKnown(value);
    if (value !== sent) {
      setText(value);
      setSent(null);
    }
  }
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const report = (next: string) => {
    clearTimeout(timer.current);
    setSent(next);
    onChange(next);
  };
  const clear = (
    <CloseButton
      aria-label="Clear the search"
      onClick={() => {
        setText("");
        report("");
      }}
      size="xs"
    />
  );
  return (
    <InputGroup colorPalette="brand" endElement={text === "" ? undefined : clear} maxW={width} startElement={<Icon name="search" />}>
      <Input
        aria-label={placeholder}
        maxLength={500}
        onChange={(event) => {
          const next = event.target.value;
          setText(next);
          clearTimeout(timer.current);
          timer.current = setTimeout(() => report(next.trim()), PAUSE_MS);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") report(text.trim());
        }}
        placeholder={placeholder}
        size="sm"
        value={text}
      />
    </InputGroup>
  );
};
