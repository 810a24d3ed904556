import { Field, Input, List, Text } from "@chakra-ui/react";
import { useEffect, useId, useRef, useState } from "react";

import { forget } from "../../api/cache";
import { ApiError } from "../../api/client";
import { type BulkResult } from "../../api/types";
import { FormDialog } from "../../components/FormDialog";
import { Notice } from "../../components/Notice";
import { TagsEditor } from "../../components/Tags";
import { toastSuccess } from "../../components/toaster";
import { plural } from "../../format/numbers";
import { act, type Offer } from "./bulk";

const LONGEST_PROJECT = 128;
/** Refusals that are named one by one. */
const NAMED = 5;

/** The experiments that an action leaves as they are, with the reasons. */
const Refusals = ({ found }: { found: BulkResult }) => {
  const refused = found.outcomes.filter(({ is_refused }) => is_refused);
  if (refused.length === 0) return null;
  return (
    <Notice status="warning" title={`${plural(refused.length, "experiment")} will stay as ${refused.length === 1 ? "it is" : "they are"}`}>
      <List.Root ps={4}>
        {refused.slice(0, NAMED).map(({ experiment_id, message }) => (
          <List.Item key={experiment_id}>{message}</List.Item>
        ))}
      </List.Root>
      {refused.length > NAMED ? <Text>and {refused.length - NAMED} more</Text> : null}
    </Notice>
  );
};

/** Return what an action would do, or why that is not known. */
const usePreview = (offer: Offer, ids: readonly number[], needsValue: boolean) => {
  const [preview, setPreview] = useState<BulkResult | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const key = ids.join(" ");
  useEffect(() => {
    if (needsValue) return undefined;
    let wanted = true;
    act(offer.action, key.split(" ").map(Number), {}, true)
      .then((found) => wanted && setPreview(found))
      .catch((thrown: unknown) => wanted && setError(thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown))));
    return () => {
      wanted = false;
    };
  }, [offer.action, key, needsValue]);
  return { preview, error };
};

interface Props {
  offer: Offer;
  ids: readonly number[];
  /** Names of projects that can be chosen. */
  projects: readonly string[];
  onDone: () => void;
  onClose: () => void;
}

/** Asks once for all chosen experiments, with counts and consequences. */
export const BulkDialog = ({ offer, ids, projects, onDone, onClose }: Props) => {
  const [project, setProject] = useState("");
  const [tags, setTags] = useState<readonly string[]>([]);
  const first = useRef<HTMLInputElement>(null);
  const known = useId();
  const needsProject = offer.action === "move";
  const needsTags = offer.action === "tag";
  const { preview, error } = usePreview(offer, ids, needsProject || needsTags);
  const isValid = needsProject ? project.trim() !== "" : needsTags ? tags.length > 0 : (preview?.done_count ?? 0) > 0;
  const submit = async () => {
    const found = await act(offer.action, ids, needsProject ? { project: project.trim() } : needsTags ? { tags } : {}, false);
    const refused = found.refused_count === 0 ? "" : ` ${plural(found.refused_count, "experiment")} stayed: ${found.outcomes.find(({ is_refused }) => is_refused)?.message ?? ""}`;
    toastSuccess(`${found.message}${refused}`);
    forget();
    onDone();
  };
  return (
    <FormDialog dangerous={offer.dangerous ?? false} first={needsProject ? first : undefined} isValid={isValid} onClose={onClose} onSubmit={submit} title={`${offer.verb} ${plural(ids.length, "experiment")}`} verb={offer.verb}>
      {error === null ? null : <Notice hint={error.hint} status="error" title={error.message} />}
      {needsProject || needsTags || error !== null ? null : (
        <Text aria-live="polite" overflowWrap="anywhere">
          {preview === null ? "Counting what this concerns …" : preview.message}
        </Text>
      )}
      {preview === null ? null : <Refusals found={preview} />}
      <Text color="fg.muted">{offer.text}</Text>
      {needsProject ? (
        <Field.Root required>
          <Field.Label>Project</Field.Label>
          <Input list={known} maxLength={LONGEST_PROJECT} onChange={(event) => setProject(event.target.value)} ref={first} value={project} />
          <datalist id={known}>
            {projects.map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
          <Field.HelperText>A name that no experiment has yet makes a new project.</Field.HelperText>
        </Field.Root>
      ) : null}
      {needsTags ? <TagsEditor onChange={setTags} tags={tags} /> : null}
    </FormDialog>
  );
};
