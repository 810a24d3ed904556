/** Requests to the API of the provider. The cookie of the Airflow session authenticates them. */

/** Folder of the API, relative to the base URL of the page, so that a sub-path in `[api] base_url` is kept. */
const ROOT = "dtrain/api/v1/";

/** Code of an error: one of the API's codes, or one of ours where no answer of the API arrived. */
export type ErrorCode =
  | "aborted"
  | "bad_answer"
  | "conflict"
  | "forbidden"
  | "invalid"
  | "network"
  | "not_found"
  | "server"
  | "store_unavailable"
  | "unauthenticated"
  | (string & {});

/** An answer that is not a success, or no answer at all. */
export class ApiError extends Error {
  constructor(
    readonly code: ErrorCode,
    /** HTTP status, 0 without an answer. */
    readonly status: number,
    message: string,
    /** Next step for the user. */
    readonly hint: string | null = null,
    /** Problems of single fields, where the API names them. */
    readonly details: unknown = null,
  ) {
    super(message);
    this.name = "ApiError";
  }

  /** Return whether a later request may succeed without an action of the user. */
  get passes(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/** Data with the tag that identifies this version of it. */
export interface Answer<T> {
  data: T;
  etag: string | null;
}

/** Values of a query string. Null, undefined and "" are left out, a list repeats its name. */
export type Query = Record<string, string | number | boolean | null | undefined | readonly (string | number)[]>;

/** Return a path with its query string, in a fixed order of the names. */
export const withQuery = (path: string, query: Query): string => {
  const search = new URLSearchParams();
  for (const name of Object.keys(query).sort()) {
    const value = query[name];
    for (const item of Array.isArray(value) ? (value as readonly (string | number)[]) : [value]) {
      if (item !== null && item !== undefined && item !== "") search.append(name, String(item));
    }
  }
  const text = search.toString();
  return text === "" ? path : `${path}?${text}`;
};

/** Return the address of a route of the API, for links and downloads. */
export const apiUrl = (path: string): string => new URL(ROOT + path, document.baseURI).href;

const CODES: Record<number, ErrorCode> = {
  401: "unauthenticated",
  403: "forbidden",
  404: "not_found",
  409: "conflict",
  422: "invalid",
  503: "store_unavailable",
};

const TEXTS: Record<string, string> = {
  conflict: "The state has changed in the meantime.",
  forbidden: "You do not have permission for this.",
  invalid: "The API server did not accept the values.",
  not_found: "The API server does not know this object.",
  server: "The API server failed to answer.",
  store_unavailable: "The store does not answer.",
  unauthenticated: "Your session has ended.",
};

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

/** Return the error that an unsuccessful answer describes. Airflow's own errors have a text or a list as detail. */
const errorOf = (status: number, body: unknown): ApiError => {
  const code = CODES[status] ?? "server";
  const fallback = TEXTS[code] ?? `The API server answered with status ${status}.`;
  const detail = isRecord(body) ? body.detail : null;
  if (isRecord(detail) && typeof detail.message === "string") {
    const ours = typeof detail.code === "string" ? detail.code : code;
    return new ApiError(ours, status, detail.message, typeof detail.hint === "string" ? detail.hint : null, detail);
  }
  if (Array.isArray(detail)) {
    const messages = detail.map((item) => (isRecord(item) && typeof item.msg === "string" ? item.msg : ""));
    return new ApiError(code, status, messages.filter(Boolean).join("; ") || fallback, null, detail);
  }
  return new ApiError(code, status, typeof detail === "string" && status !== 401 ? `${fallback} (${detail})` : fallback);
};

const jsonOf = async (response: Response): Promise<unknown> => {
  try {
    return (await response.json()) as unknown;
  } catch {
    return undefined;
  }
};

const noAnswer = (): ApiError =>
  new ApiError("network", 0, "The API server does not answer.", "Check the connection and `airflow api-server`.");

const request = async (path: string, init: RequestInit): Promise<Response> => {
  try {
    return await fetch(apiUrl(path), { credentials: "same-origin", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") {
      throw new ApiError("aborted", 0, "The request was cancelled.");
    }
    throw noAnswer();
  }
};

/** Time after which an answer is no longer expected, in milliseconds: a lost connection may never end by itself. */
const LONGEST_MS = 60_000;

/** Fetch data. Return null if the data is still the version with this tag. */
export const fetchData = async <T>(path: string, etag: string | null, signal: AbortSignal): Promise<Answer<T> | null> => {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (etag !== null) headers["If-None-Match"] = etag;
  const overdue = new AbortController();
  const timer = setTimeout(() => {
    overdue.abort();
  }, LONGEST_MS);
  try {
    const response = await request(path, { headers, signal: AbortSignal.any([signal, overdue.signal]), cache: "no-store" });
    if (response.status === 304) return null;
    const body = await jsonOf(response);
    if (!response.ok) throw errorOf(response.status, body);
    if (body === undefined) {
      throw new ApiError("bad_answer", response.status, "The answer is not JSON.", "A proxy may have replaced it.");
    }
    return { data: body as T, etag: response.headers.get("ETag") };
  } catch (error) {
    throw overdue.signal.aborted && !signal.aborted ? noAnswer() : error;
  } finally {
    clearTimeout(timer);
  }
};

/** Carry out an action. The header keeps pages of other sites from sending it. */
export const send = async <T>(method: "DELETE" | "PATCH" | "POST" | "PUT", path: string, body?: unknown): Promise<T> => {
  const headers: Record<string, string> = { Accept: "application/json", "X-Dtrain": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await request(path, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  const answer = await jsonOf(response);
  if (!response.ok) throw errorOf(response.status, answer);
  return answer as T;
};
