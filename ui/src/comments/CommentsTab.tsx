import { Box, Button, Field, HStack, Stack, Text, Textarea } from "@chakra-ui/react";
import { type FormEvent, useState } from "react";

import { ApiError, send } from "../api/client";
import { type components } from "../api/schema";
import { ConfirmDialog } from "../components/ConfirmDialog";
import { EmptyState } from "../components/EmptyState";
import { ErrorNotice } from "../components/ErrorNotice";
import { Loading } from "../components/Loading";
import { Markdown } from "../components/Markdown";
import { Notice } from "../components/Notice";
import { Stale } from "../components/Stale";
import { Time } from "../components/Time";
import { LIVE_MS, useData } from "../hooks/useData";

type Comments = components["schemas"]["Comments"];
type Comment = components["schemas"]["Comment"];

/** Period of the comments of other users, in milliseconds. */
const EVERY_MS = 10 * LIVE_MS;
const LONGEST = 10_000;

const Form = ({ path, words, onDone }: { path: string; words: string; onDone: () => void }) => {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (text.trim() === "" || busy) return;
    setBusy(true);
    setError(null);
    try {
      await send("POST", path, { text });
      setText("");
      onDone();
    } catch (thrown) {
      setError(thrown instanceof ApiError ? thrown : new ApiError("server", 0, String(thrown)));
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)}>
      <Stack gap={2}>
        <Field.Root>
          <Field.Label>Comment on {words}</Field.Label>
          <Textarea maxLength={LONGEST} onChange={(event) => setText(event.target.value)} rows={3} value={text} />
          <Field.HelperText>Markdown: headings, lists, quotes, code, emphasis and links.</Field.HelperText>
        </Field.Root>
        {error === null ? null : <Notice hint={error.hint} status="error" title={error.message} />}
        <Button alignSelf="start" disabled={text.trim() === ""} loading={busy} size="sm" type="submit">
          Comment
        </Button>
      </Stack>
    </form>
  );
};

const Entry = ({ comment: { at, by, is_own, text, comment_id }, mayEdit, onDelete }: { comment: Comment; mayEdit: boolean; onDelete: () => void }) => (
  <Box as="article" aria-label={`Comment ${comment_id} of ${by}`} borderColor="border" borderRadius="md" borderWidth={1} p={3}>
    <HStack fontSize="xs" justify="space-between" mb={1} wrap="wrap">
      <Text color="fg.muted">
        <bdi>
          <strong>{by}</strong>
        </bdi>
        {", "}
        <Time at={at} />
      </Text>
      {is_own && mayEdit ? (
        <Button aria-label={`Delete comment ${comment_id}`} onClick={onDelete} size="2xs" variant="ghost">
          Delete
        </Button>
      ) : null}
    </HStack>
    <Markdown text={text} />
  </Box>
);

interface Props {
  /** Route of the object: "trials/7". */
  path: string;
  /** The object in words: "trial 7". */
  words: string;
}

/** Comments of users on an experiment or a trial, oldest first, and a form for another one. */
export const CommentsTab = ({ path, words }: Props) => {
  const route = `${path}/comments`;
  const { data, error, loading, stale, refresh } = useData<Comments>(route, { everyMs: EVERY_MS });
  const [deleted, setDeleted] = useState<Comment | null>(null);
  if (loading) return <Loading />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Comments" />;
  return (
    <Stack gap={3} maxW="52rem">
      {error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Comments" />}
      <Stale stale={stale}>
        <Stack gap={3}>
          {data.rows.length === 0 ? <EmptyState text={data.may_comment ? undefined : "Users who may edit runs of its DAG can add one."} title={`There are no comments on ${words}.`} /> : null}
          {data.rows.map((comment) => (
            <Entry comment={comment} key={comment.comment_id} mayEdit={data.may_comment} onDelete={() => setDeleted(comment)} />
          ))}
        </Stack>
      </Stale>
      {data.may_comment ? <Form onDone={refresh} path={route} words={words} /> : null}
      {deleted === null ? null : (
        <ConfirmDialog
          dangerous
          onClose={() => setDeleted(null)}
          onConfirm={async () => {
            await send("DELETE", `${route}/${deleted.comment_id}`);
            refresh();
          }}
          text="The comment is removed for all users. This cannot be undone."
          title={`Delete your comment on ${words}?`}
          verb="Delete"
        />
      )}
    </Stack>
  );
};
