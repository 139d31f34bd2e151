/**
 * The client's platform in a browser. The page's origin must be allowed by the servers.
 *
 * A browser tells a page nothing about a refused upgrade, not even a redirect. That is no loss: a follower forwards the
 * connection to the leader, and after a refusal the client tries the next server of the list.
 */

import type { Clock } from "./clock.js";
import { type HttpResponse, type Platform, holdUrl } from "./platform.js";

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

/** The one platform of a page. */
export const browserPlatform: Platform = {
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
  async request(address, { method, path, headers, body }, signal, sending): Promise<HttpResponse> {
    sending();
    const response = await fetch(`${address.secure ? "https" : "http"}://${address.host}${path}`, {
      method,
      signal,
      cache: "no-store",
      ...(headers !== undefined && { headers }),
      ...(body !== undefined && { body: new Blob([Uint8Array.from(body)]) }),
    });
    return {
      status: response.status,
      header: (name) => response.headers.get(name) ?? undefined,
      body: chunks(response.body),
    };
  },
};
