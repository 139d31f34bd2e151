/**
 * The client's platform in a browser. The page's origin must be allowed by the servers.
 *
 * A browser tells a page nothing about a refused upgrade, not even a redirect. That is no loss: a follower forwards the
 * connection to the leader, and after a refusal the client tries the next server of the list.
 */

import type { Clock } from "./clock.js";
import type { Address } from "./endpoints.js";
import {
  type HttpRequest,
  type HttpResponse,
  type Platform,
  type Socket,
  type SocketHandlers,
  checkToken,
  holdUrl,
  identity,
} from "./platform.js";

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

/** The protocol that the servers speak. A browser ends a connection whose server accepts none of those that it was offered. */
const PROTOCOL = "palisade";

/**
 * The platform of a page, with this bearer token.
 * @throws TypeError if it is no bearer token, or none that a WebSocket of a browser can send.
 */
export function browserPlatform(token: string | undefined): Platform {
  checkToken(token);
  if (token !== undefined && !/^[\w!#$%&'*+.^`|~-]+$/.test(token)) {
    throw new TypeError("`token` is not a bearer token that a browser can send with a WebSocket: give it other characters");
  }
  return {
    ...page,
    connect: (address, handlers) => connect(address, handlers, token),
    request: (address, request, signal, sending) => send(address, request, signal, sending, token),
  };
}

/** What every page has. */
const page: Omit<Platform, "connect" | "request"> = {
  clock,
  defaultOwner: "",
  secure: "location" in globalThis && globalThis.location.protocol === "https:",
  // A browser answers pings by itself, and tells the page nothing about them.
  silenceMs: Infinity,
  usesFetch: true,
  afterArrivals: (work) => void setTimeout(work, 0),
};

/** How long a first request may keep a WebSocket waiting: a page whose connections are all in use sends it late. */
const MEETING_MS = 500;

/** The hosts that have answered this page over TLS, and the first requests to others. */
const meetings = new Map<string, Promise<void>>();

/**
 * Resolves when the host has answered a request, cannot, or takes too long. A server with TLS asks for a client's
 * certificate. Chromium cancels a WebSocket whose server does, unless an earlier request to that host has settled that
 * there is none.
 */
function meet({ host }: Address): Promise<unknown> {
  let meeting = meetings.get(host);
  if (meeting === undefined) {
    // The WebSocket will tell what is wrong with the host.
    meeting = fetch(`https://${host}/healthz`, { cache: "no-store" }).then(
      () => undefined,
      () => void meetings.delete(host),
    );
    meetings.set(host, meeting);
  }
  return Promise.race([meeting, new Promise((resolve) => setTimeout(resolve, MEETING_MS))]);
}

/** Dials with the token, if there is one and the connection has TLS: the protocols are all that a page can send with it. */
function connect(address: Address, handlers: SocketHandlers, token: string | undefined): Socket {
  let socket: WebSocket | undefined;
  let isClosed = false;
  const dial = () => {
    if (isClosed) return;
    socket = new WebSocket(holdUrl(address), address.secure && token !== undefined ? [PROTOCOL, `bearer.${token}`] : []);
    let isOpened = false;
    socket.onopen = () => {
      isOpened = true;
      handlers.opened();
    };
    socket.onmessage = ({ data }) => handlers.received(typeof data === "string" ? data : undefined);
    socket.onclose = ({ code, reason }) => {
      if (!isOpened) meetings.delete(address.host);
      handlers.closed(`the connection ended with code ${code}${reason === "" ? "" : `, "${reason}"`}`);
    };
  };
  if (address.secure) {
    meet(address)
      .then(dial)
      .catch((error: unknown) => handlers.closed(String(error)));
  } else dial();
  return {
    send: (frame) => {
      if (socket?.readyState === WebSocket.OPEN) socket.send(frame);
    },
    close: () => {
      isClosed = true;
      if (socket === undefined) return;
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    },
  };
}

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
  if (address.secure) meetings.set(address.host, Promise.resolve());
  return {
    status: response.status,
    header: (name) => response.headers.get(name) ?? undefined,
    body: chunks(response.body),
  };
}
