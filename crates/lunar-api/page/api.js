// Requests to the API of the server that served this page.

const KEY = "lunar-token";

/** The error of a request, with the fix as `hint`. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server responds with status ${status}`);
    this.status = status;
    this.hint = problem.hint || "";
    this.errors = problem.errors || [];
  }
}

/** Takes the token of the fragment, which no server sees, out of the address. */
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    keepToken(token);
    history.replaceState(null, "", location.pathname);
  }
}

/** Keeps a token for this tab. */
export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

function headers(more) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function call(method, path, options = {}) {
  const init = { method, headers: headers(options.headers || {}), cache: "no-store", signal: options.signal };
  if (options.body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  let response;
  try {
    response = await fetch(path, init);
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new ApiError(0, { detail: "the server does not answer", hint: "check that it runs, and that this page may reach it" });
  }
  if (!response.ok) {
    throw new ApiError(response.status, await response.json().catch(() => ({})));
  }
  return response;
}

/** Reads a resource. */
export async function get(path) {
  return (await call("GET", path)).json();
}

/** Changes something. `headers` may hold a condition. */
export async function send(method, path, body, headers) {
  return (await call(method, path, { body, headers })).json();
}

/** The path of a LUN. */
export function lunPath(target, lun) {
  return `/v1/targets/${encodeURIComponent(target)}/luns/${lun}`;
}

/** The events of a text/event-stream, as objects. EventSource sends no token. */
export async function* events(path, lastId, signal) {
  const more = lastId === null ? {} : { "Last-Event-ID": String(lastId) };
  const response = await call("GET", path, { headers: more, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length > 0) yield JSON.parse(data.join("\n"));
    }
  }
}
