/** Watches: what happens to locks and records, followed across servers. */

import type { Address } from "./endpoints.js";
import { Compacted, PalisadeError } from "./errors.js";
import { EventParser, type StreamEvent } from "./event-stream.js";
import { PASSING, WAITED_FOR, httpFailure, refused } from "./events.js";
import { Deadline, type Requests, pathOf, sleep, whole } from "./http.js";
import type { HttpResponse, Platform } from "./platform.js";
import { Route } from "./route.js";
import {
  type LockView,
  type Mode,
  type RecordSummary,
  boolean,
  claimOf,
  count,
  list,
  lockView,
  optionalCount,
  parseObject,
  recordSummary,
  string,
} from "./views.js";
import { type Failure, type Fields, WireError, parseFailure, texts } from "./wire.js";

/** How long a server has to begin its stream, in milliseconds. */
const BEGIN_MS = 5_000;
/** How long a stream may be silent, in milliseconds: a server that is well says something every 10 s. */
const SILENCE_MS = 30_000;

/** What to watch: a key, or all keys that begin so; an empty prefix for all. */
export type WatchTarget =
  | { readonly key: string; readonly prefix?: never }
  | { readonly prefix: string; readonly key?: never };

/** What to watch, and from where on. */
export type WatchOptions = WatchTarget & {
  /** Begin with the event after this ID. Without it, the watch begins with the present state. */
  readonly after?: string;
  /** Ends the watch when it is aborted: the iterator then throws its reason. */
  readonly signal?: AbortSignal;
};

/** A part of the present state. `begins` in the first part: what was shown before is out of date. */
export interface Listing {
  readonly kind: "listing";
  /** After which to resume; in the last part only. */
  readonly id?: string;
  /** The state is that after this entry of the log. */
  readonly revision: number;
  readonly begins: boolean;
  readonly complete: boolean;
  readonly locks: readonly LockView[];
  readonly records: readonly RecordSummary[];
}

interface Base {
  /**
   * After which to resume ({@link WatchOptions}). The same at every server. Absent between two parts of a listing: a
   * watch cannot be resumed there.
   */
  readonly id?: string;
  /** The index of the entry in the log. */
  readonly revision: number;
  /** The key of the lock or the record. */
  readonly key: string;
}

interface Claimed extends Base {
  readonly session: number;
  readonly owner: string;
  readonly mode: Mode;
  readonly permits?: number;
  readonly of?: number;
  readonly keys: readonly string[];
}

/** Why a session has lost its lock or its queue position. */
export type Because = "request" | "expired" | "closed" | "broken" | "denied";

/** Something that has happened to a lock or a record (docs/api.md, "Watches"). */
export type Change =
  | ({ readonly kind: "granted"; readonly token: number; readonly value?: string } & Claimed)
  | ({ readonly kind: "queued"; readonly ahead: number } & Claimed)
  | ({ readonly kind: "value"; readonly session: number; readonly token: number; readonly value: string } & Base)
  | ({ readonly kind: "released"; readonly session: number; readonly token: number; readonly because: Because } & Base)
  | ({ readonly kind: "withdrawn"; readonly session: number; readonly because: Because } & Base)
  | ({ readonly kind: "expired"; readonly session: number; readonly token?: number } & Base)
  | ({ readonly kind: "broken"; readonly session: number; readonly token: number } & Base)
  | ({ readonly kind: "put"; readonly version: number; readonly fence?: number } & Base)
  | ({ readonly kind: "deleted"; readonly version: number } & Base);

/** What a watch tells. Decide by `kind`. */
export type WatchEvent = Listing | Change;

/** The pause after `too_soon`, in milliseconds. */
const LONG_PAUSE_MS = 1_000;

/**
 * Follows a watch, for ever: each event once and in order. When a connection ends, it goes on at another server after
 * the last event that it has read; no event is read before the one before it was taken.
 *
 * One server may have as many watches as it can have, or a file of tokens that is older than that of the others. So a
 * refusal ends the watch only if all servers have refused it since its last event; at its beginning, also if one has, and
 * no other serves it in time.
 */
export async function* follow(requests: Requests, options: WatchOptions): AsyncGenerator<WatchEvent, void, undefined> {
  const { key, prefix, signal } = options;
  // A watch goes to any server, and learns nothing of the leader.
  const route = new Route(requests.addresses, {}, Math.random);
  const { clock } = requests.platform;
  let { after } = options;
  // The servers that have refused the watch, or sent what is not of a watch, since the last event.
  const refusedBy = new Set<string>();
  let lastRefusal: PalisadeError | undefined;
  // Until when another server has to begin a watch that one has refused.
  let giveUpAt: number | undefined;
  for (;;) {
    signal?.throwIfAborted();
    const address = route.next();
    const stream = new ServerStream(requests.platform, address, pathOf("/v1/watch", { key, prefix, after }), signal);
    let leave = new Leave();
    try {
      for (let event = await stream.next(); event !== undefined; event = await stream.next()) {
        const told = read(event);
        if (told instanceof Leave) {
          leave = told;
          break;
        }
        if (event.id !== undefined) after = event.id;
        if (told === undefined) continue;
        refusedBy.clear();
        route.succeeded(address);
        yield told;
      }
    } finally {
      stream.close();
    }
    if (stream.hasBegun) {
      refusedBy.delete(address.host);
      giveUpAt = Infinity;
    }
    if (leave.error !== undefined) {
      lastRefusal = leave.error;
      refusedBy.add(address.host);
      giveUpAt ??= clock.now() + requests.reachMs;
      if (requests.addresses.every(({ host }) => refusedBy.has(host))) throw lastRefusal;
    }
    if (lastRefusal !== undefined && giveUpAt !== undefined && clock.now() >= giveUpAt) throw lastRefusal;
    await sleep(Math.max(route.failed(address, stream.reached), leave.pauseMs), signal);
  }
}

/** The connection is of no use any more, and another server may do better. */
class Leave {
  /** What the user is told if no server does. */
  readonly error: PalisadeError | undefined;
  readonly pauseMs: number;

  constructor(error?: PalisadeError, pauseMs = 0) {
    this.error = error;
    this.pauseMs = pauseMs;
  }
}

/** The events of one connection. */
class ServerStream {
  readonly #deadline: Deadline;
  readonly #signal: AbortSignal | undefined;
  readonly #parser = new EventParser();
  readonly #events: StreamEvent[] = [];
  readonly #response: Promise<HttpResponse>;
  #chunks: AsyncIterator<Uint8Array> | undefined;
  #reached = false;
  #isOver = false;

  constructor(platform: Platform, address: Address, path: string, signal: AbortSignal | undefined) {
    this.#signal = signal;
    this.#deadline = new Deadline(platform, signal);
    this.#deadline.set(BEGIN_MS, "the stream did not begin in time");
    const request = { method: "GET", path, headers: { Accept: "text/event-stream" } };
    this.#response = platform.request(address, request, this.#deadline.signal, () => undefined);
    this.#response.catch(() => undefined);
  }

  /** Whether the server has answered. */
  get reached(): boolean {
    return this.#reached;
  }

  /** Whether the server has begun to serve the watch. */
  get hasBegun(): boolean {
    return this.#chunks !== undefined;
  }

  /**
   * The next event; `undefined` when the connection is of no use any more. A refusal of the watch is its `end`.
   * @throws the reason of the user's signal.
   */
  async next(): Promise<StreamEvent | undefined> {
    this.#signal?.throwIfAborted();
    try {
      return await this.#next();
    } catch {
      this.#signal?.throwIfAborted();
      return undefined;
    }
  }

  async #next(): Promise<StreamEvent | undefined> {
    if (this.#isOver) return undefined;
    if (this.#chunks === undefined) {
      const response = await this.#response;
      this.#reached = true;
      if (response.status !== 200) {
        this.#isOver = true;
        return await refusal(response);
      }
      this.#chunks = response.body[Symbol.asyncIterator]();
    }
    while (this.#events.length === 0) {
      this.#deadline.set(SILENCE_MS, "the server is silent");
      const chunk = await this.#chunks.next();
      this.#deadline.clear();
      if (chunk.done === true) return undefined;
      this.#events.push(...this.#parser.take(chunk.value));
    }
    return this.#events.shift();
  }

  close(): void {
    this.#deadline.end();
  }
}

async function refusal({ status, body }: HttpResponse): Promise<StreamEvent> {
  const text = new TextDecoder().decode(await whole(body));
  const { code: error, message } = httpFailure({ status, body: text });
  return { kind: "end", data: JSON.stringify({ error: error || "overloaded", message }) };
}

/**
 * What an event tells: nothing if it is of a later kind.
 * @throws {@link Compacted} if events are missing.
 */
function read({ kind, data, id }: StreamEvent): WatchEvent | Leave | undefined {
  try {
    const fields = parseObject(data);
    switch (kind) {
      case "listing":
        return listing(fields, id);
      case "compacted": {
        const floor = count(fields, "floor");
        throw new Compacted(`events are not there any more: the server has those after revision ${floor}`, floor);
      }
      case "end":
        return leaveFor(parseFailure(fields));
      default:
        return change(kind, fields, id);
    }
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    return new Leave(new PalisadeError("malformed", `a server sent what is not of a watch: ${error.message}`));
  }
}

/** Why a server has ended or refused the watch. */
function leaveFor(failure: Failure): Leave {
  if (PASSING.has(failure.code) || failure.code === "too_slow") return new Leave();
  if (WAITED_FOR.has(failure.code)) return new Leave(undefined, LONG_PAUSE_MS);
  return new Leave(refused(failure));
}

function listing(fields: Fields, id: string | undefined): Listing {
  return {
    kind: "listing",
    ...(id !== undefined && { id }),
    revision: count(fields, "revision"),
    begins: boolean(fields, "begins"),
    complete: boolean(fields, "complete"),
    locks: list(fields, "locks", lockView),
    records: list(fields, "records", recordSummary),
  };
}

function change(kind: string, fields: Fields, id: string | undefined): Change | undefined {
  const base = {
    ...(id !== undefined && { id }),
    revision: count(fields, "revision"),
    key: string(fields, "key"),
  };
  const session = () => ({ session: count(fields, "session") });
  const token = () => ({ token: count(fields, "token") });
  const version = () => ({ version: count(fields, "version") });
  const because = () => ({ because: string(fields, "because") as Because });
  const claim = () => ({ ...claimOf(fields), keys: texts(fields["keys"]) ?? [] });
  switch (kind) {
    case "granted":
      return { kind, ...base, ...claim(), ...token(), ...("value" in fields && { value: string(fields, "value") }) };
    case "queued":
      return { kind, ...base, ...claim(), ahead: count(fields, "ahead") };
    case "value":
      return { kind, ...base, ...session(), ...token(), value: string(fields, "value") };
    case "released":
      return { kind, ...base, ...session(), ...token(), ...because() };
    case "withdrawn":
      return { kind, ...base, ...session(), ...because() };
    case "expired":
      return { kind, ...base, ...session(), ...("token" in fields && token()) };
    case "broken":
      return { kind, ...base, ...session(), ...token() };
    case "put": {
      const fence = optionalCount(fields, "fence");
      return { kind, ...base, ...version(), ...(fence !== undefined && { fence }) };
    }
    case "deleted":
      return { kind, ...base, ...version() };
    default:
      return undefined;
  }
}
