/** An API of a test: answers `fetch` from a table of routes. */
import { vi } from "vitest";

/** One answer: a status with a body, or a body of a success. */
export interface Reply {
  status?: number;
  body?: unknown;
  etag?: string;
}

type Handler = (url: URL, init: RequestInit) => Reply | Promise<Reply>;

/** Requests that arrived: method, path below `api/v1/` with its query string, body, headers. */
export interface Arrived {
  method: string;
  path: string;
  body: unknown;
  headers: Headers;
}

const PREFIX = "/dtrain/api/v1/";

/**
 * Answer the requests of a test. Unknown routes answer 404 as FastAPI does.
 *
 * @param routes name of a route ("experiments", "POST hosts/a/drain") with its reply
 */
export const serve = (routes: Record<string, Reply | Handler>): Arrived[] => {
  const arrived: Arrived[] = [];
  vi.spyOn(globalThis, "fetch").mockImplementation(async (input, init = {}) => {
    const url = new URL(String(input), document.baseURI);
    const method = init.method ?? "GET";
    const path = url.pathname.slice(url.pathname.indexOf(PREFIX) + PREFIX.length);
    const headers = new Headers(init.headers);
    arrived.push({ method, path: path + url.search, body: typeof init.body === "string" ? JSON.parse(init.body) : undefined, headers });
    init.signal?.throwIfAborted();
    const route = routes[`${method} ${path}`] ?? (method === "GET" ? routes[path] : undefined);
    const reply = route === undefined ? { status: 404, body: { detail: "Not Found" } } : typeof route === "function" ? await route(url, init) : route;
    init.signal?.throwIfAborted();
    if (reply.etag !== undefined && headers.get("If-None-Match") === reply.etag) return new Response(null, { status: 304 });
    return new Response(typeof reply.body === "string" ? reply.body : JSON.stringify(reply.body ?? {}), {
      status: reply.status ?? 200,
      headers: reply.etag === undefined ? {} : { ETag: reply.etag },
    });
  });
  return arrived;
};
