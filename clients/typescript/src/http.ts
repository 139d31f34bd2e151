/**
 * Requests over HTTP, at any server: a follower forwards what only the leader can answer.
 *
 * A request that no server has executed is sent to the next one. So is a read whose answer was lost, and a write that
 * cannot be done twice. Any other write whose answer was lost has an unknown outcome, and is never sent again: not by
 * this client, but a browser may have sent any request twice, so there a write that is not answered with success has an
 * unknown outcome.
 */

import { type Address, redirectTarget } from "./endpoints.js";
import { type PalisadeError, UnknownOutcome, Unreachable } from "./errors.js";
import { PASSING, httpFailure, refused } from "./events.js";
import { type HttpRequest, type Platform, Unread } from "./platform.js";
import { Route, type RouteMemory } from "./route.js";
import { type Failure, WireError } from "./wire.js";

/** How long a server has to accept a connection, in milliseconds. */
const DIAL_MS = 1_500;
/** How long a server has to answer at the least, in milliseconds. */
const ANSWER_MS = 2_000;
/** The longest answer that is read: a page of 1,000 locks with full queues is shorter. In bytes. */
const MOST_BYTES = 64 * 1024 * 1024;
/** The codes of an answer that leaves open whether the request was or will be executed. */
const OPEN_ENDED = new Set(["leadership_lost", "shutting_down"]);

/**
 * What may be done with a request whose answer was lost. A `read` is sent again, and so is a `guarded` write: if the
 * lost attempt was executed, the repetition is refused. A write that is sent `once` is not.
 */
export type Kind = "read" | "guarded" | "once";

/** A whole answer with status 200. */
export interface Answer {
  header(name: string): string | undefined;
  readonly body: Uint8Array;
}

/** How one request is sent. */
export interface Sending<T> {
  /** What is asked for, for messages. */
  readonly what: string;
  readonly kind: Kind;
  /** Reads the answer; throws {@link WireError} if it is malformed. */
  read(answer: Answer): T;
  readonly signal?: AbortSignal | undefined;
  /** Whether any server answers: a read that may lag behind. */
  readonly stale?: boolean | undefined;
}

type Attempt<T> =
  | { readonly is: "answered"; readonly value: T }
  | { readonly is: "refused"; readonly error: PalisadeError }
  | { readonly is: "redirected"; readonly to: Address; readonly why: string }
  | { readonly is: "failed"; readonly why: string; readonly reached: boolean; readonly maybeDone: boolean };

/** Sends the requests of one client. */
export class Requests {
  readonly platform: Platform;
  readonly addresses: readonly Address[];
  /** The server that answered last as the leader. */
  readonly #leader: RouteMemory;
  /** The server that answered the last stale read. */
  readonly #any: RouteMemory = {};
  /** How long to look for a server that can answer, in milliseconds. */
  readonly reachMs: number;

  constructor(platform: Platform, addresses: readonly Address[], leader: RouteMemory, reachMs: number) {
    this.platform = platform;
    this.addresses = addresses;
    this.#leader = leader;
    this.reachMs = reachMs;
  }

  /**
   * Sends a request until a server answers it.
   *
   * @throws {@link UnknownOutcome} for a write that may have been done.
   * @throws {@link Unreachable} if no server has answered in time, and the request was certainly not executed.
   * @throws the error that a server's refusal is to the user, and the reason of `signal`.
   */
  async ask<T>(request: HttpRequest, sending: Sending<T>): Promise<T> {
    const { what, kind, signal, stale } = sending;
    const { clock, usesFetch } = this.platform;
    const route = new Route(this.addresses, stale === true ? this.#any : this.#leader, Math.random);
    const until = clock.now() + this.reachMs;
    // Whether a browser may have sent a write that was done, and told the answer to the second one.
    const isRepeated = usesFetch && kind !== "read";
    let maybeDone = false;
    const unknown = (why: string, options?: ErrorOptions) =>
      new UnknownOutcome(`it is not known whether ${what} was done: ${why}`, options);
    for (;;) {
      signal?.throwIfAborted();
      const address = route.next();
      const left = until - clock.now();
      // A request that can be sent again leaves time for another server.
      const answerMs = Math.max(kind === "once" ? left : left / 2, ANSWER_MS);
      const attempt = await this.#attempt(address, request, sending, answerMs);
      let pause: number;
      switch (attempt.is) {
        case "answered":
          route.succeeded(address);
          return attempt.value;
        case "refused":
          route.succeeded(address);
          if (!maybeDone && !isRepeated) throw attempt.error;
          // The refusal of a repetition: the attempt whose answer was lost may be the reason.
          throw unknown(`it is refused, maybe because it was sent before: ${attempt.error.message}`, {
            cause: attempt.error,
          });
        case "redirected":
          pause = route.redirected(attempt.to, address);
          break;
        case "failed":
          maybeDone ||= kind !== "read" && attempt.maybeDone;
          if (maybeDone && kind === "once") throw unknown(attempt.why);
          pause = route.failed(address, attempt.reached);
      }
      if (clock.now() + pause >= until) {
        if (maybeDone || isRepeated) throw unknown(`no server has answered in time; the last failure: ${attempt.why}`);
        throw new Unreachable(`no server could serve ${what} in time; the last failure: ${attempt.why}`);
      }
      await sleep(pause, signal);
    }
  }

  /**
   * The path of a key.
   * @throws TypeError if it cannot be asked for in a browser, whose URLs have no parts `.` and `..`.
   */
  pathOfKey(folder: string, key: string): string {
    if (key !== "." && key !== "..") return `${folder}/${encodeURIComponent(key)}`;
    if (this.platform.usesFetch) throw new TypeError(`no URL of a browser can name the key "${key}"`);
    return `${folder}/${key.replaceAll(".", "%2E")}`;
  }

  async #attempt<T>(
    address: Address,
    request: HttpRequest,
    { kind, read, signal }: Sending<T>,
    answerMs: number,
  ): Promise<Attempt<T>> {
    let wasSent = false;
    const failed = (why: string, reached: boolean, maybeDone = wasSent): Attempt<T> => {
      return { is: "failed", why: `${address.host}: ${why}`, reached, maybeDone };
    };
    const deadline = new Deadline(this.platform, signal);
    deadline.set(DIAL_MS, "the connection was not opened in time");
    try {
      const response = await this.platform.request(address, request, deadline.signal, () => {
        wasSent = true;
        deadline.set(answerMs, "the server has not answered in time");
      });
      const body = await whole(response.body);
      if (response.status === 200) return { is: "answered", value: read({ header: response.header, body }) };
      const location = response.header("location");
      const text = new TextDecoder().decode(body);
      return judge(httpFailure({ status: response.status, body: text }), location, address, failed);
    } catch (error) {
      // The user's signal, which is no failure of the server.
      if (signal?.aborted === true) throw signal.reason;
      if (error instanceof WireError) return failed(`the answer is malformed: ${error.message}`, true, kind !== "read");
      return failed(messageOf(deadline.reason ?? error), wasSent, wasSent && !(error instanceof Unread));
    } finally {
      deadline.end();
    }
  }
}

function judge<T>(
  failure: Failure,
  location: string | undefined,
  from: Address,
  failed: (why: string, reached: boolean, maybeDone?: boolean) => Attempt<T>,
): Attempt<T> {
  const { code, leader } = failure;
  const why = `${code || "an error"}: ${failure.message}`;
  const named = code === "not_leader" ? (location ?? leader) : undefined;
  const to = named === undefined ? undefined : redirectTarget(named, from);
  if (to !== undefined) return { is: "redirected", to, why: `${from.host}: ${why}` };
  // What is not from Palisade may come from a proxy whose server has executed the request.
  if (code === "" || OPEN_ENDED.has(code)) return failed(why, true);
  if (PASSING.has(code)) return failed(why, true, false);
  return { is: "refused", error: refused(failure) };
}

/** Aborts a signal when a time is over, or when the user's signal is aborted. */
export class Deadline {
  readonly #platform: Platform;
  readonly #user: AbortSignal | undefined;
  readonly #controller = new AbortController();
  readonly #abort = () => this.#controller.abort(this.#user?.reason);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #reason: Error | undefined;

  constructor(platform: Platform, user: AbortSignal | undefined) {
    this.#platform = platform;
    this.#user = user;
    if (user?.aborted === true) this.#abort();
    else user?.addEventListener("abort", this.#abort);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Which time was over, if one was. */
  get reason(): Error | undefined {
    return this.#reason;
  }

  /**
   * Sets the time anew. What has arrived is read before it counts as over: a process that was busy must not take its
   * own delay for the server's silence.
   */
  set(ms: number, what: string): void {
    this.clear();
    const timer = setTimeout(() => {
      this.#platform.afterArrivals(() => {
        if (this.#timer !== timer) return;
        this.#reason = new Error(what);
        this.#controller.abort(this.#reason);
      });
    }, ms);
    this.#timer = timer;
  }

  /** Stops the time. */
  clear(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Stops the time, and ends what still runs under the signal. */
  end(): void {
    this.clear();
    this.#user?.removeEventListener("abort", this.#abort);
    this.#controller.abort();
  }
}

/** The whole body. */
export async function whole(body: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body) {
    chunks.push(chunk);
    size += chunk.length;
    if (size > MOST_BYTES) throw new WireError(`it has more than ${MOST_BYTES} bytes`);
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}

/** A pause that the user's signal ends. */
export function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted === true) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** A path with its query; what is `undefined` is left out. */
export function pathOf(path: string, query: Readonly<Record<string, string | number | undefined>>): string {
  const fields = Object.entries(query).flatMap(([name, value]) =>
    value === undefined ? [] : `${name}=${encodeURIComponent(value)}`,
  );
  return fields.length === 0 ? path : `${path}?${fields.join("&")}`;
}
