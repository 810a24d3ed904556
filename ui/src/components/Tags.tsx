import { HStack, IconButton, Input, Tag } from "@chakra-ui/react";
import { type KeyboardEvent, useState } from "react";

import { Icon } from "./icons";

/** Longest tag, and most tags of one object; the API has the same limits. */
export const LONGEST_TAG = 64;
export const MOST_TAGS = 32;

/** Tags in one line. */
export const Tags = ({ tags, onPick }: { tags: readonly string[]; onPick?: (tag: string) => void }) => (
  <span className="dtrain-row">
    {tags.map((tag) =>
      onPick === undefined ? (
        <span className="dtrain-tag" key={tag} title={tag}>
          {tag}
        </span>
      ) : (
        <button className="dtrain-tag" key={tag} onClick={() => onPick(tag)} title={tag} type="button">
          {tag}
        </button>
      ),
    )}
  </span>
);

interface Props {
  tags: readonly string[];
  onChange: (tags: string[]) => void;
  disabled?: boolean;
}

/** Return the tags with those of a text added: a comma separates tags, and a tag occurs once. */
export const withTags = (tags: readonly string[], text: string): string[] => {
  const added = text.split(",").map((tag) => tag.trim().slice(0, LONGEST_TAG)).filter((tag) => tag !== "");
  return [...new Set([...tags, ...added])].slice(0, MOST_TAGS);
};

/** Editor of tags: Enter or a comma adds the text as a tag, Backspace in the empty field removes the last one. */
export const TagsEditor = ({ tags, onChange, disabled = false }: Props) => {
  const [text, setText] = useState("");
  const add = () => {
    if (text.trim() !== "") onChange(withTags(tags, text));
    setText("");
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" || event.key === ",") {
      event.preventDefault();
      add();
    } else if (event.key === "Backspace" && text === "" && tags.length > 0) onChange(tags.slice(0, -1));
  };
  return (
    <HStack gap={1} wrap="wrap">
      {tags.map((tag) => (
        <Tag.Root colorPalette="brand" key={tag} maxW="240px" size="md" title={tag}>
          <Tag.Label>{tag}</Tag.Label>
          {disabled ? null : (
            <Tag.EndElement>
              <Tag.CloseTrigger aria-label={`Remove the tag ${tag}`} onClick={() => onChange(tags.filter((item) => item !== tag))} />
            </Tag.EndElement>
          )}
        </Tag.Root>
      ))}
      {disabled || tags.length >= MOST_TAGS ? null : (
        <>
          <Input
            aria-label="New tag"
            maxLength={LONGEST_TAG}
            onBlur={add}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={onKeyDown}
            placeholder="Add a tag"
            size="xs"
            value={text}
            width="120px"
          />
          <IconButton aria-label="Add the tag" disabled={text.trim() === ""} onClick={add} size="xs" variant="ghost">
            <Icon name="plus" />
          </IconButton>
        </>
      )}
    </HStack>
  );
};
