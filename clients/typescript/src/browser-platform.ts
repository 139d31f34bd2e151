/**
 * The client's platform in a browser. The page's origin must be allowed by the servers.
 *
 * A browser tells a page nothing about a refused upgrade, not even a redirect. That is no loss: a follower forwards the
 * connection to the leader, and after a refusal the client tries the next server of the list.
 */

import type { Clock } from "./clock.js";
import type { Address } from "./endpoints.js";
import { type HttpRequest, type HttpResponse, type Platform, checkToken, holdUrl, identity } from "./platform.js";

/**
 * `performance.now()`. Whether it goes on while the machine sleeps differs between browsers and systems: where it does
 * not, a page that wakes up learns from the server that its lock is lost, and not from its own clock.
 */
const clock: Clock = { now: () => performance.now(), outlivesTimers: false };

async function* chunks(body: ReadableStream<Uint8Array> | null): AsyncGenerator<Uint8Array> {
  const reader = body?.getReader();
  try {
    for (;;) {
      const read = await reader?.read();
      if (read === undefined || read.done) return;
      yield read.value;
    }
  } finally {
    // An error of the stream has been told by `read`.
    reader?.cancel().catch(() => undefined);
  }
}

/**
 * The platform of a page, with this bearer token for everything but locks: a WebSocket of a browser sends none.
 * @throws TypeError if it is no bearer token.
 */
export function browserPlatform(token: string | undefined): Platform {
  checkToken(token);
  return { ...page, request: (address, request, signal, sending) => send(address, request, signal, sending, token) };
}

/** What every page has. */
const page: Omit<Platform, "request"> = {
  clock,
  defaultOwner: "",
  secure: "location" in globalThis && globalThis.location.protocol === "https:",
  // A browser answers pings by itself, and tells the page nothing about them.
  silenceMs: Infinity,
  usesFetch: true,
  afterArrivals: (work) => void setTimeout(work, 0),
  connect(address, handlers) {
    const socket = new WebSocket(holdUrl(address));
    socket.onopen = () => handlers.opened();
    socket.onmessage = ({ data }) => handlers.received(typeof data === "string" ? data : undefined);
    socket.onclose = ({ code, reason }) =>
      handlers.closed(`the connection ended with code ${code}${reason === "" ? "" : `, "${reason}"`}`);
    return {
      send: (frame) => {
        if (socket.readyState === WebSocket.OPEN) socket.send(frame);
      },
      close: () => {
        socket.onopen = socket.onmessage = socket.onclose = null;
        socket.close();
      },
    };
  },
};

async function send(
  address: Address,
  { method, path, headers, body }: HttpRequest,
  signal: AbortSignal,
  sending: () => void,
  token: string | undefined,
): Promise<HttpResponse> {
  sending();
  const response = await fetch(`${address.secure ? "https" : "http"}://${address.host}${path}`, {
    method,
    signal,
    cache: "no-store",
    headers: { ...headers, ...identity(address, token) },
    ...(body !== undefined && { body: new Blob([Uint8Array.from(body)]) }),
  });
  return {
    status: response.status,
    header: (name) => response.headers.get(name) ?? undefined,
    body: chunks(response.body),
  };
}
