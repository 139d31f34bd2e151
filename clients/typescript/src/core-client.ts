/** The client, for every platform. */

import { Driver } from "./driver.js";
import { type Address, parseEndpoints } from "./endpoints.js";
import { Requests, pathOf } from "./http.js";
import { Lock } from "./lock.js";
import type { Platform } from "./platform.js";
import { type ReadOptions, Records } from "./records.js";
import { Route, type RouteMemory } from "./route.js";
import { type LockPage, type LockView, lockPage, lockView, parseObject } from "./views.js";
import { type WatchEvent, type WatchOptions, follow } from "./watch.js";
import { type Claim, type Fields, MAX_MS } from "./wire.js";

/** How one lock is acquired. Times are in milliseconds. Bounds and defaults are the server's (docs/api.md). */
export interface LockOptions {
  /** How long the lock outlives this process: 100 to 86,400,000; 30,000 if absent. */
  readonly ttlMs?: number;
  /** How long to wait for the lock: 0 to 86,400,000; 0 if absent: do not wait. */
  readonly waitMs?: number;
  /** A name for operators to read; in Node `HOSTNAME:PID` if absent. */
  readonly owner?: string;
  /** With `shared`, others hold the lock at the same time if they ask for it so. `exclusive` if absent. */
  readonly mode?: "exclusive" | "shared";
  /** Makes the lock a semaphore: how many permits this request takes. Needs `of`, and no `mode`. */
  readonly permits?: number;
  /** How many permits the semaphore has. */
  readonly of?: number;
  /** Fail with {@link Held} in place of waiting where so many wait already. */
  readonly maxQueue?: number;
  /** A text that other clients see at the lock. */
  readonly value?: string;
  /** Gives up the wait when it is aborted; the promise rejects with its reason. Without meaning after the grant. */
  readonly signal?: AbortSignal;
}

/** Which locks are listed, and how. */
export interface ListOptions extends ReadOptions {
  /** How many locks a page has at the most: 1 to 1,000; 100 if absent. */
  readonly limit?: number;
  /** Only keys after this one: the `nextAfter` of the page before. */
  readonly after?: string;
}

/** What holds for all locks of a client. */
export interface CoreOptions {
  /** The owner of locks that name none. */
  readonly owner?: string;
  /**
   * How long to look for a server that can answer, also by an acquire that does not wait, and for each request, in
   * milliseconds; 5,000 if absent.
   */
  readonly reachMs?: number;
}

/** Work that is done under a lock. */
export type Work<T> = (lock: Lock) => T | Promise<T>;

const DEFAULT_TTL_MS = 30_000;
const DEFAULT_REACH_MS = 5_000;

/** A client of a cluster. It holds no connection: each lock, request and watch has its own. */
export class CoreClient {
  /** The records: a key-value store beside the locks. */
  readonly records: Records;
  readonly #requests: Requests;
  readonly #platform: Platform;
  readonly #addresses: readonly Address[];
  readonly #memory: RouteMemory = {};
  readonly #owner: string;
  readonly #reachMs: number;

  protected constructor(endpoints: string | readonly string[], options: CoreOptions, platform: Platform) {
    this.#platform = platform;
    this.#addresses = parseEndpoints(endpoints, platform.secure);
    this.#owner = options.owner ?? platform.defaultOwner;
    this.#reachMs = milliseconds("reachMs", options.reachMs ?? DEFAULT_REACH_MS, 0);
    this.#requests = new Requests(platform, this.#addresses, this.#memory, this.#reachMs);
    this.records = new Records(this.#requests);
  }

  /**
   * Acquires a lock, or several keys together or not at all.
   *
   * @throws {@link Held} if another client holds it, and this request does not wait.
   * @throws {@link Timeout} if the wait ended without a grant.
   * @throws {@link Refused} if a server refuses the request; `code` says why.
   * @throws {@link Unreachable} if no server could be reached in time.
   * @throws {@link LockLost} if the process stood still until the lease of its grant and the wait were over.
   * @throws the reason of `options.signal`, if that is aborted before the grant.
   */
  async lock(keys: string | readonly string[], options: LockOptions = {}): Promise<Lock> {
    const claim = this.#claim(keys, options);
    const waitMs = milliseconds("waitMs", options.waitMs ?? 0, 0);
    const patience = { waitMs, reachMs: this.#reachMs, silenceMs: this.#platform.silenceMs };
    const route = new Route(this.#addresses, this.#memory, Math.random);
    const driver = new Driver(this.#platform, claim, patience, route);
    const grant = await driver.acquire(options.signal);
    return new Lock(driver, typeof keys === "string" ? [keys] : [...keys], grant);
  }

  /**
   * Acquires a lock, does the work, and releases the lock. The result is the work's.
   *
   * If the lock is lost, `lock.signal` tells the work to stop, and this method waits for its end.
   *
   * @throws what the work throws; and {@link LockLost} if the work ended well but the lock was lost in between, because
   *   another client may have worked at the same time.
   * @throws as {@link CoreClient.lock}.
   */
  withLock<T>(keys: string | readonly string[], work: Work<T>): Promise<T>;
  withLock<T>(keys: string | readonly string[], options: LockOptions, work: Work<T>): Promise<T>;
  async withLock<T>(keys: string | readonly string[], second: LockOptions | Work<T>, third?: Work<T>): Promise<T> {
    const [options, work] = typeof second === "function" ? [{}, second] : [second, third];
    if (work === undefined) throw new TypeError("withLock needs the work to do: withLock(key, options, work)");
    const lock = await this.lock(keys, options);
    let result: T;
    try {
      result = await work(lock);
    } catch (error) {
      await lock.release().catch(() => undefined);
      throw error;
    }
    await lock.release();
    return result;
  }

  /**
   * Reads a lock: who holds it, with which tokens and values, and who waits. A free lock has no holders.
   *
   * @throws {@link Unreachable}, {@link Refused}.
   */
  async show(key: string, options: ReadOptions = {}): Promise<LockView> {
    const path = this.#requests.pathOfKey("/v1/locks", key);
    return this.#read(path, {}, options, `the lock "${key}"`, lockView);
  }

  /**
   * Reads a page of the locks that are held or waited for and whose keys begin with `prefix`, in the byte order of
   * their keys. For the next page, ask again with `after` at the `nextAfter` of this one: each page is a read of its own.
   *
   * @throws {@link Unreachable}, {@link Refused}.
   */
  list(prefix = "", options: ListOptions = {}): Promise<LockPage> {
    const { limit, after } = options;
    return this.#read("/v1/locks", { prefix, limit, after }, options, "the list of locks", lockPage);
  }

  /**
   * Follows what happens to the lock and the record on a key, or on all keys that begin with a prefix. It does not end
   * by itself: when a server or a connection fails, it goes on at another one after the last event, without a gap or a
   * repetition, for as long as that takes. Leave the loop to end it, or abort `signal`.
   *
   * @throws {@link Compacted} if events that follow are not there any more.
   * @throws {@link Refused} if all servers refuse the watch one after the other; at its beginning, also if one does, and
   *   no other serves it within `reachMs`.
   */
  watch(options: WatchOptions): AsyncGenerator<WatchEvent, void, undefined> {
    if ((options.key === undefined) === (options.prefix === undefined)) {
      throw new TypeError("a watch needs a `key` or a `prefix`: client.watch({ prefix: \"jobs/\" })");
    }
    return follow(this.#requests, options);
  }

  #read<T>(
    path: string,
    query: Readonly<Record<string, string | number | undefined>>,
    { stale, signal }: ReadOptions,
    what: string,
    read: (fields: Fields) => T,
  ): Promise<T> {
    return this.#requests.ask(
      { method: "GET", path: pathOf(path, { ...query, consistency: stale === true ? "stale" : undefined }) },
      {
        what,
        kind: "read",
        read: ({ body }) => read(parseObject(new TextDecoder().decode(body))),
        signal,
        stale,
      },
    );
  }

  #claim(keys: string | readonly string[], options: LockOptions): Claim {
    return {
      keys: typeof keys === "string" ? keys : [...keys],
      ttlMs: milliseconds("ttlMs", options.ttlMs ?? DEFAULT_TTL_MS, 1),
      owner: options.owner ?? this.#owner,
      ...(options.mode !== undefined && { mode: options.mode }),
      ...(options.permits !== undefined && { permits: options.permits }),
      ...(options.of !== undefined && { of: options.of }),
      ...(options.maxQueue !== undefined && { maxQueue: options.maxQueue }),
      ...(options.value !== undefined && { value: options.value }),
    };
  }
}

/** The client computes with these numbers itself, so it checks them before the server does. */
function milliseconds(name: string, value: number, least: number): number {
  if (Number.isInteger(value) && value >= least && value <= MAX_MS) return value;
  throw new RangeError(`\`${name}\` is ${value}; it must be an integer from ${least} to ${MAX_MS}, in milliseconds`);
}
