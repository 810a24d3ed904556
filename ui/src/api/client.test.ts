import { describe, expect, it, vi } from "vitest";

import { serve } from "../testing/server";
import { type ApiError, fetchData, send, withQuery } from "./client";

const failure = async (promise: Promise<unknown>) => {
  const error = await promise.then(() => null, (thrown: unknown) => thrown as ApiError);
  return error === null ? null : { code: error.code, status: error.status, message: error.message, hint: error.hint };
};

const get = () => fetchData("thing", null, new AbortController().signal);

describe("an unsuccessful answer", () => {
  it("is described by the message and the hint of the API", async () => {
    serve({ thing: { status: 409, body: { detail: { code: "conflict", message: "Trial 7 has ended.", hint: "Fork it." } } } });
    expect(await failure(get())).toEqual({ code: "conflict", status: 409, message: "Trial 7 has ended.", hint: "Fork it." });
  });

  it("of Airflow has a text or a list as detail", async () => {
    serve({ thing: { status: 403, body: { detail: "Forbidden" } } });
    expect(await failure(get())).toMatchObject({ code: "forbidden", message: "You do not have permission for this. (Forbidden)" });
    serve({ thing: { status: 422, body: { detail: [{ msg: "Input should be 'asc'" }, { msg: "Too long" }] } } });
    expect(await failure(get())).toMatchObject({ code: "invalid", message: "Input should be 'asc'; Too long" });
  });

  it("of a proxy is no JSON", async () => {
    serve({ thing: { status: 502, body: "<html>Bad gateway</html>" } });
    expect(await failure(get())).toMatchObject({ code: "server", status: 502 });
    serve({ thing: { body: "<html>Log in</html>" } });
    expect(await failure(get())).toMatchObject({ code: "bad_answer", status: 200 });
  });

  it("can be no answer at all", async () => {
    vi.spyOn(globalThis, "fetch").mockRejectedValue(new TypeError("Failed to fetch"));
    expect(await failure(get())).toMatchObject({ code: "network", status: 0 });
  });

  it("is no longer expected after a minute, before its head or inside its body", async () => {
    vi.useFakeTimers();
    const never = (init?: RequestInit) =>
      new Promise<never>((_, reject) => {
        init?.signal?.addEventListener("abort", () => {
          reject(new DOMException("aborted", "AbortError"));
        });
      });
    const stuck = (_: unknown, init?: RequestInit) => {
      const response = new Response("{}");
      response.json = () => never(init);
      return Promise.resolve(response);
    };
    for (const fetching of [(_: unknown, init?: RequestInit) => never(init), stuck]) {
      vi.spyOn(globalThis, "fetch").mockImplementation(fetching);
      const failed = failure(get());
      await vi.advanceTimersByTimeAsync(61_000);
      expect(await failed).toMatchObject({ code: "network", status: 0 });
    }
    vi.useRealTimers();
  });
});

describe("a request", () => {
  it("has its query in a fixed order without empty values", () => {
    expect(withQuery("a", { z: [1, 2], b: "", c: null, a: "x&y", d: 0 })).toBe("a?a=x%26y&d=0&z=1&z=2");
  });

  it("that acts carries the header that other sites cannot send", async () => {
    const arrived = serve({ "POST thing": { body: { message: "done" } } });
    await send("POST", "thing", { reason: "x" });
    expect(arrived[0]).toMatchObject({ method: "POST", body: { reason: "x" } });
    expect(arrived[0]?.headers.get("X-Dtrain")).toBe("1");
  });
});
