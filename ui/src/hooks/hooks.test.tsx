import { act, render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { cached, forget } from "../api/cache";
import { requestEarly } from "../api/early";
import { type Reply, serve } from "../testing/server";
import { show } from "../testing/show";
import { useData } from "./useData";
import { pauseMs } from "./usePoll";
import { useUrlState } from "./useUrlState";

const Probe = ({ path }: { path: string | null }) => {
  const { data, error, loading, stale } = useData<{ value: string }>(path, { everyMs: 1_000 });
  return <p>{`${data?.value ?? "none"} ${error?.code ?? "ok"} ${loading ? "loading" : ""}${stale ? "stale" : ""}`.trim()}</p>;
};

const hide = (hidden: boolean) => {
  vi.spyOn(document, "hidden", "get").mockReturnValue(hidden);
  document.dispatchEvent(new Event("visibilitychange"));
};

const wait = (ms: number) => act(() => vi.advanceTimersByTimeAsync(ms));

describe("polling", () => {
  beforeEach(() => {
    vi.useFakeTimers();
    vi.spyOn(Math, "random").mockReturnValue(0.5);
  });
  afterEach(() => vi.useRealTimers());

  it("repeats a request with the tag of the last answer, and keeps the data when they are unchanged", async () => {
    const arrived = serve({ thing: { body: { value: "one" }, etag: '"1"' } });
    render(<Probe path="thing" />);
    expect(screen.getByText("none ok loading")).toBeTruthy();
    await wait(2_100);
    expect(screen.getByText("one ok")).toBeTruthy();
    expect(arrived.map(({ headers }) => headers.get("If-None-Match"))).toEqual([null, '"1"', '"1"']);
  });

  it("counts a new pause from the last request, instead of sending one at once", async () => {
    const Slower = () => {
      const { data } = useData<{ value: string }>("thing", { everyMs: cached("thing") === null ? 30_000 : 1_000 });
      return <p>{data?.value ?? "none"}</p>;
    };
    const arrived = serve({ thing: { body: { value: "one" }, etag: '"1"' } });
    render(<Slower />);
    await wait(10);
    expect(screen.getByText("one")).toBeTruthy();
    await wait(900);
    expect(arrived).toHaveLength(1);
    await wait(200);
    expect(arrived).toHaveLength(2);
  });

  it("takes over a request that was sent early, and polls with its tag", async () => {
    const arrived = serve({ thing: { body: { value: "one" }, etag: '"1"' } });
    requestEarly("thing");
    requestEarly("thing");
    render(<Probe path="thing" />);
    await wait(10);
    expect(screen.getByText("one ok")).toBeTruthy();
    expect(arrived).toHaveLength(1);
    await wait(1_000);
    expect(arrived.map(({ headers }) => headers.get("If-None-Match"))).toEqual([null, '"1"']);
  });

  it("shows an early answer at once, and confirms it after the pause unless it is old", async () => {
    const arrived = serve({ thing: { body: { value: "one" }, etag: '"1"' } });
    requestEarly("thing");
    await wait(10);
    const { unmount } = render(<Probe path="thing" />);
    expect(screen.getByText("one ok")).toBeTruthy();
    await wait(900);
    expect(arrived).toHaveLength(1);
    await wait(200);
    expect(arrived).toHaveLength(2);
    unmount();
    forget();
    requestEarly("thing");
    await wait(5_000);
    render(<Probe path="thing" />);
    await wait(10);
    expect(arrived).toHaveLength(4);
  });

  it("shows an early answer that arrives after the first render, also where it is the only request", async () => {
    const arrived = serve({ thing: { body: { value: "one" }, etag: '"1"' } });
    const Once = () => <p>{useData<{ value: string }>("thing", { everyMs: null }).data?.value ?? "none"}</p>;
    hide(true);
    render(<Once />);
    requestEarly("thing");
    await wait(10);
    expect(screen.getByText("none")).toBeTruthy();
    hide(false);
    await wait(10);
    expect(screen.getByText("one")).toBeTruthy();
    expect(arrived).toHaveLength(1);
  });

  it("shows the error of an early request that is on its way, and retries it", async () => {
    let reply: Reply = { status: 503, body: { detail: { code: "store_unavailable", message: "away", hint: "" } } };
    serve({ thing: () => reply });
    requestEarly("thing");
    render(<Probe path="thing" />);
    await wait(10);
    expect(screen.getByText("none store_unavailable")).toBeTruthy();
    reply = { body: { value: "one" } };
    await wait(2_100);
    expect(screen.getByText("one ok")).toBeTruthy();
  });

  it("stops while the tab is hidden, and starts at once when it is shown", async () => {
    const arrived = serve({ thing: { body: { value: "one" } } });
    render(<Probe path="thing" />);
    await wait(10);
    act(() => hide(true));
    await wait(60_000);
    expect(arrived).toHaveLength(1);
    act(() => hide(false));
    await wait(10);
    expect(arrived).toHaveLength(2);
  });

  it("waits longer after each failure, keeps the old data with a mark, and recovers", async () => {
    let reply: Reply = { body: { value: "one" } };
    const arrived = serve({ thing: () => reply });
    render(<Probe path="thing" />);
    await wait(10);
    reply = { status: 503, body: { detail: { code: "store_unavailable", message: "away", hint: "" } } };
    await wait(1_000);
    expect(screen.getByText("one store_unavailable stale")).toBeTruthy();
    await wait(1_900);
    expect(arrived).toHaveLength(2);
    await wait(200);
    expect(arrived).toHaveLength(3);
    await wait(3_800);
    expect(arrived).toHaveLength(3);
    reply = { body: { value: "two" } };
    await wait(300);
    expect(screen.getByText("two ok")).toBeTruthy();
  });

  it("ends when the object is gone or the user may not read it", async () => {
    for (const status of [404, 403, 401]) {
      const arrived = serve({ thing: { status, body: { detail: "no" } } });
      const { unmount } = render(<Probe path="thing" />);
      await wait(60_000);
      expect(arrived).toHaveLength(1);
      unmount();
    }
  });

  it("aborts the request of a component that is removed, and of an old path", async () => {
    const signals: (AbortSignal | null | undefined)[] = [];
    serve({
      slow: (_url, { signal }) => {
        signals.push(signal);
        return new Promise<Reply>(() => undefined);
      },
      thing: { body: { value: "one" } },
    });
    const { rerender, unmount } = render(<Probe path="slow" />);
    await wait(10);
    rerender(<Probe path="thing" />);
    await wait(10);
    expect(signals[0]?.aborted).toBe(true);
    expect(screen.getByText("one ok")).toBeTruthy();
    rerender(<Probe path="slow" />);
    await wait(10);
    unmount();
    expect(signals[1]?.aborted).toBe(true);
  });

  it("never pauses for longer than 36 seconds", () => {
    expect([pauseMs(1_000, 0), pauseMs(1_000, 1, 0.5), Math.round(pauseMs(1_000, 50, 1))]).toEqual([1_000, 2_000, 36_000]);
  });
});

const USUAL = { q: "", limit: 10, state: [] as readonly string[], columns: ["a", "b"] as readonly string[], log: false };

const UrlProbe = () => {
  const [view, setView] = useUrlState(USUAL);
  return (
    <>
      <p>{JSON.stringify(view)}</p>
      <button
        onClick={() => {
          setView({ q: "x y" });
          setView({ state: ["one", "two"], columns: [], limit: 10, log: true });
        }}
        type="button"
      >
        change
      </button>
      <button onClick={() => setView({ state: [...view.state, "more"] }, "add")} type="button">
        filter
      </button>
    </>
  );
};

describe("the state in the URL", () => {
  it("keeps several changes of one event, and leaves out usual values", async () => {
    const { router } = show(<UrlProbe />, "/plugin/dtrain/x?other=1&q=old");
    await userEvent.click(screen.getByRole("button", { name: "change" }));
    expect(router.state.location.search).toBe("?other=1&q=x+y&state=one&state=two&columns=&log=1");
    expect(screen.getByText('{"q":"x y","limit":10,"state":["one","two"],"columns":[],"log":true}')).toBeTruthy();
  });

  it("returns to the former filter with the back button, and passes over changes that replaced it", async () => {
    const { router } = show(<UrlProbe />, "/plugin/dtrain/x");
    const filter = screen.getByRole("button", { name: "filter" });
    await userEvent.click(filter);
    await userEvent.click(filter);
    await userEvent.click(screen.getByRole("button", { name: "change" }));
    await act(() => router.navigate(-1));
    expect(router.state.location.search).toBe("?state=more");
    await userEvent.click(filter);
    expect(router.state.location.search).toBe("?state=more&state=more");
  });

  it("ignores numbers that are none", () => {
    show(<UrlProbe />, "/plugin/dtrain/x?limit=abc");
    expect(screen.getByText(/"limit":10/)).toBeTruthy();
  });
});
