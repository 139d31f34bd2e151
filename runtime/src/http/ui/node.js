// The way to the node that served this page: requests, the bearer token, and the stream of events.
//
// Everything goes to this page's own origin. A redirect to the leader is not followed: it leads to
// another origin, for which the browser would refuse the request, and which must not get the token.

/** What the node has refused, or that it did not answer. `code` is that of docs/api.md. */
export class Refusal extends Error {
  constructor(code, message, status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

// In this variable and nowhere else: it ends with the page.
let token = "";

/** A token is sent by TLS only, as every client of Palisade does. */
export const mayHaveToken = location.protocol === "https:";

export function setToken(text) {
  token = mayHaveToken ? text.trim() : "";
}

export function hasToken() {
  return token !== "";
}

async function send(path, { method = "GET", body, headers = {}, signal } = {}) {
  const authorization = token ? { Authorization: `Bearer ${token}` } : {};
  const options = { method, body, signal, headers: { ...headers, ...authorization }, cache: "no-store", redirect: "manual" };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted && signal.reason.name !== "TimeoutError") throw signal.reason;
    // A token with letters that no header may have is no failure of the network.
    if (error instanceof TypeError && /headers/i.test(error.message)) {
      throw new Refusal("unauthenticated", "the token has characters that no token has: enter it again", 401);
    }
    throw new Refusal("unreachable", "this node does not answer");
  }
  if (response.type === "opaqueredirect") throw new Refusal("not_leader", "only the leader can do this", 307);
  if (response.ok) return response;
  const refusal = await response.json().catch(() => ({}));
  throw new Refusal(refusal.error ?? "unknown", refusal.message ?? `the node answered with ${response.status}`, response.status);
}

/** Sends a request, and gives the JSON of the answer. */
export async function ask(path, options = {}) {
  const body = options.body === undefined ? undefined : JSON.stringify(options.body);
  const response = await send(path, { signal: AbortSignal.timeout(10_000), ...options, body });
  return response.json();
}

/** The content of a record, and what its headers say of it. */
export async function record(key) {
  const response = await send(`/v1/kv/${encodeURIComponent(key)}?consistency=stale`, { signal: AbortSignal.timeout(10_000) });
  const bytes = new Uint8Array(await response.arrayBuffer());
  return { version: response.headers.get("x-version"), fence: response.headers.get("x-max-fence"), bytes };
}

/** A watch sends a comment every 10 s: one that is silent for longer is dead. */
const SILENCE_MS = 25_000;

/**
 * The events of a watch, as they come: `{ event, id, data }`, and `{ event: "quiet" }` for a comment.
 * It ends with the stream. EventSource could not send the header with the token.
 */
export async function* watch(query, after, signal) {
  const silence = new AbortController();
  const either = AbortSignal.any([signal, silence.signal]);
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(new Refusal("unreachable", "the stream of events is silent")), SILENCE_MS);
  };
  heard();
  try {
    const headers = after ? { "Last-Event-ID": after } : {};
    const response = await send(`/v1/watch?${query}`, { headers, signal: either });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield parse(block);
    }
  } catch (error) {
    if (signal.aborted || error instanceof Refusal) throw error;
    throw silence.signal.aborted ? silence.signal.reason : new Refusal("unreachable", "the stream of events broke off");
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

/** One event of a stream, without the empty line behind it. */
function parse(block) {
  const part = { event: "quiet", id: undefined, data: null };
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) part.event = line.slice(6).trim();
    else if (line.startsWith("id:")) part.id = line.slice(3).trim();
    else if (line.startsWith("data:")) data += line.slice(5).trimStart();
  }
  if (data) part.data = JSON.parse(data);
  return part;
}
