import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { serve } from "../testing/server";
import { show } from "../testing/show";
import { CommentsTab } from "./CommentsTab";

const HOSTILE = "<img src=x onerror=alert(1)>";
const comment = (id: number, values: object = {}) => ({ at: "2026-11-26T10:00:00Z", by: "ann", comment_id: id, is_own: false, text: `text ${id}`, ...values });
const page = (rows: object[], mayComment = true) => ({ body: { may_comment: mayComment, rows } });
const open = () => show(<CommentsTab path="trials/7" words="trial 7" />);

describe("comments", () => {
  it("have user, time and Markdown, and nothing of them is markup", async () => {
    serve({ "trials/7/comments": page([comment(1, { by: HOSTILE, text: `**good** ${HOSTILE}` })]) });
    const { container } = open();
    const entry = await screen.findByRole("article", { name: `Comment 1 of ${HOSTILE}` });
    expect(within(entry).getByText("good").tagName).toBe("STRONG");
    expect(within(entry).getByTestId("markdown").textContent).toBe(`good ${HOSTILE}`);
    expect(entry.querySelector("time")?.getAttribute("datetime")).toBe("2026-11-26T10:00:00Z");
    expect(container.querySelector("img")).toBeNull();
    expect(screen.queryByRole("button", { name: "Delete comment 1" })).toBeNull();
  });

  it("are added", async () => {
    const rows: object[] = [];
    const arrived = serve({
      "POST trials/7/comments": () => {
        rows.push(comment(3, { is_own: true, text: "a first look" }));
        return page(rows);
      },
      "trials/7/comments": () => page(rows),
    });
    open();
    expect(await screen.findByText("There are no comments on trial 7.")).toBeTruthy();
    const button = screen.getByRole<HTMLButtonElement>("button", { name: "Comment" });
    expect(button.disabled).toBe(true);
    await userEvent.type(screen.getByRole("textbox", { name: "Comment on trial 7" }), "a first look");
    await userEvent.click(button);
    expect(await screen.findByText("a first look", { selector: "p" })).toBeTruthy();
    const sent = arrived.find(({ method }) => method === "POST");
    expect(sent?.body).toEqual({ text: "a first look" });
    expect(sent?.headers.get("X-Dtrain")).toBe("1");
    expect(screen.getByRole<HTMLTextAreaElement>("textbox").value).toBe("");
  });

  it("keep the text of one that the server refuses", async () => {
    const refused = { status: 409, body: { detail: { code: "conflict", hint: "", message: "Trial 7 has 500 comments, which is the most." } } };
    serve({ "POST trials/7/comments": refused, "trials/7/comments": page([]) });
    open();
    await userEvent.type(await screen.findByRole("textbox"), "a");
    await userEvent.click(screen.getByRole("button", { name: "Comment" }));
    expect(await screen.findByText("Trial 7 has 500 comments, which is the most.")).toBeTruthy();
    expect(screen.getByRole<HTMLTextAreaElement>("textbox").value).toBe("a");
  });

  it("of the user are deleted after a question", async () => {
    let rows = [comment(1), comment(2, { is_own: true })];
    const arrived = serve({
      "DELETE trials/7/comments/2": () => {
        rows = [comment(1)];
        return page(rows);
      },
      "trials/7/comments": () => page(rows),
    });
    open();
    await userEvent.click(await screen.findByRole("button", { name: "Delete comment 2" }));
    expect(arrived.some(({ method }) => method === "DELETE")).toBe(false);
    await userEvent.click(within(await screen.findByRole("alertdialog")).getByRole("button", { name: "Delete" }));
    await expect.poll(() => screen.queryByText("text 2")).toBeNull();
    expect(screen.getByText("text 1")).toBeTruthy();
  });

  it("have no form for a user who may only read", async () => {
    serve({ "trials/7/comments": page([comment(1, { is_own: true })], false) });
    open();
    expect(await screen.findByText("text 1")).toBeTruthy();
    expect(screen.queryByRole("textbox")).toBeNull();
    expect(screen.queryByRole("button", { name: "Delete comment 1" })).toBeNull();
  });
});
