/** What the client needs of the machine: a clock, WebSockets and HTTP. Node and browsers differ here only. */

import type { Clock } from "./clock.js";
import type { Address } from "./endpoints.js";
import type { HttpRefusal } from "./events.js";

/** The path of the hold protocol. */
export const HOLD_PATH = "/v1/hold";

/** What a socket reports. Nothing is reported after {@link Socket.close}. */
export interface SocketHandlers {
  opened(): void;
  /** A text frame; `undefined` for a binary one. */
  received(frame: string | undefined): void;
  pinged(): void;
  refused(refusal: HttpRefusal): void;
  closed(reason: string): void;
}

/** An open or opening WebSocket. */
export interface Socket {
  send(frame: string): void;
  /** Ends the connection at once, without a farewell, and reports nothing any more. */
  close(): void;
}

/** A request of HTTP. */
export interface HttpRequest {
  readonly method: string;
  /** The path, with the query. */
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Uint8Array;
}

/** The answer to a request, whose body is yet to be read. */
export interface HttpResponse {
  readonly status: number;
  header(name: string): string | undefined;
  /** The body; a loop over it that is left ends the connection. */
  readonly body: AsyncIterable<Uint8Array>;
}

/** A request that the server has certainly not read. */
export class Unread extends Error {}

/** The machine. */
export interface Platform {
  readonly clock: Clock;
  /** The owner that is shown for a lock if its user names none. */
  readonly defaultOwner: string;
  /** Whether an endpoint without a scheme is dialled with TLS. */
  readonly secure: boolean;
  /**
   * How long a server that is well may say nothing, pings included, in milliseconds; `Infinity` if this platform does
   * not show pings.
   */
  readonly silenceMs: number;
  /**
   * Whether `fetch` of a browser sends the requests. It sends them over connections that it has open, and if one of
   * them ends before an answer has come, it sends the request again by itself, a write too. Nor can it ask for a path
   * that ends with `.` or `..`.
   */
  readonly usesFetch: boolean;
  connect(address: Address, handlers: SocketHandlers): Socket;
  /**
   * Sends a request; without `fetch`, over a connection of its own, and once. Calls `sending` before the first byte of
   * it may leave: a request that fails before, or with {@link Unread}, was not executed. It ends when `signal` is
   * aborted.
   */
  request(address: Address, request: HttpRequest, signal: AbortSignal, sending: () => void): Promise<HttpResponse>;
  /** Runs `work` after the messages that have arrived already. */
  afterArrivals(work: () => void): void;
}

/**
 * Checks a bearer token.
 * @throws TypeError if it is none.
 */
export function checkToken(token: string | undefined): void {
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new TypeError(
      "`token` is not a bearer token: it is empty, or has a space, a line break or another character",
    );
  }
}

/** The header with the bearer token. A token is a secret: it is never sent without TLS. */
export function identity(address: Address, token: string | undefined): Record<string, string> {
  return address.secure && token !== undefined ? { Authorization: `Bearer ${token}` } : {};
}

/** The URL at which a server's hold protocol is. */
export function holdUrl(address: Address): string {
  return `${address.secure ? "wss" : "ws"}://${address.host}${HOLD_PATH}`;
}
