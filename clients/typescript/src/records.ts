/** The records: a key-value store beside the locks, whose writes name the lock under which they are made. */

import { Refused } from "./errors.js";
import { type Answer, type Kind, type Requests, pathOf } from "./http.js";
import { count, parseObject } from "./views.js";
import { WireError } from "./wire.js";

/** The longest content of a record, in bytes. */
const MOST_BYTES = 65_536;
/** The longest transaction that a server reads, in bytes of its JSON. */
const MOST_JSON_BYTES = 256 * 1024;

/** A lock and the token with which it is held: a `Lock` is one. */
export interface HeldLock {
  readonly key: string;
  readonly token: number;
}

/** How current an answer must be. */
export interface ReadOptions {
  /** Read what any server has applied, at once: it may lag behind. Linearizable if absent. */
  readonly stale?: boolean;
  /** Gives up the request when it is aborted; the promise rejects with its reason. */
  readonly signal?: AbortSignal;
}

/** The conditions of a write, all of which must be met. */
export interface WriteOptions {
  /**
   * The lock is held with this token at the moment of the write. It need not have the record's key. The cluster is the
   * judge: a write is also sent under a lock that this client takes for lost.
   */
  readonly lock?: HeldLock;
  /** The record has this version; 0: there is no such record. */
  readonly ifVersion?: number;
  /** Gives up the request when it is aborted; the promise rejects with its reason, and the write may have been done. */
  readonly signal?: AbortSignal;
}

/** A change of a transaction. */
export type RecordChange =
  | { readonly put: { readonly key: string; readonly value: string | Uint8Array } }
  | { readonly append: { readonly key: string; readonly value: string | Uint8Array } }
  | { readonly delete: { readonly key: string } };

/** A condition of a transaction: a lock is held with this token, or a record has this version (0: there is none). */
export type Condition =
  | { readonly held: HeldLock }
  | { readonly version: { readonly key: string; readonly version: number } };

/** A record that was read. */
export class StoredRecord {
  readonly key: string;
  readonly value: Uint8Array;
  /** The number of the transaction that changed the record last. It never comes back. */
  readonly version: number;
  /** The greatest token that this transaction had to hold; absent if it had to hold none. */
  readonly fence: number | undefined;
  /** The age of a stale read, in milliseconds; absent if it was linearizable, or if the server does not know it. */
  readonly ageMs: number | undefined;

  /** @internal */
  constructor(key: string, { header, body }: Answer) {
    this.key = key;
    this.value = body;
    const version = number(header, "x-version");
    if (version === undefined || version === 0) throw new WireError(`the header X-Version is ${version ?? "missing"}`);
    this.version = version;
    this.fence = number(header, "x-max-fence");
    this.ageMs = number(header, "x-age-ms");
  }

  /** The content as UTF-8; what is not UTF-8 becomes U+FFFD. */
  text(): string {
    return new TextDecoder().decode(this.value);
  }
}

/**
 * The records of a cluster.
 *
 * **A write whose answer is lost** is sent again only if it cannot be done twice: with `ifVersion` of an existing
 * record, or a transaction with such a condition on a record that it changes. Versions never come back, so the
 * repetition is refused if the first attempt was done. Any other write is not sent again, and throws
 * {@link UnknownOutcome}; so does a repetition that is refused. All other errors mean that nothing was changed.
 *
 * **In a browser**, `fetch` may send any write again by itself, and does not tell the page. So there every write that is
 * refused throws {@link UnknownOutcome}, and an append that could be done twice is not sent at all.
 *
 * @throws {@link StaleToken} if the lock is not held with the token, or a holder has written the record.
 * @throws {@link OtherVersion} if the record has another version.
 * @throws {@link StoreFull} if all records together would be too large.
 * @throws {@link UnknownOutcome} if the write may have been done.
 * @throws TypeError in a browser: for an append without the version of a record that exists, and for a key `.` or `..`.
 * @throws {@link Unreachable} if no server could be reached in time.
 * @throws {@link Refused} if a server refuses the request; `code` says why.
 */
export class Records {
  readonly #requests: Requests;

  /** @internal */
  constructor(requests: Requests) {
    this.#requests = requests;
  }

  /**
   * Reads a record.
   * @throws {@link NoRecord} if there is none.
   */
  async get(key: string, { stale, signal }: ReadOptions = {}): Promise<StoredRecord> {
    const path = pathOf(this.#path(key), { consistency: stale === true ? "stale" : undefined });
    return this.#requests.ask(
      { method: "GET", path },
      {
        what: `the record "${key}"`,
        kind: "read",
        read: (answer) => new StoredRecord(key, answer),
        signal,
        stale,
      },
    );
  }

  /** Gives a record this content, whether or not it exists. Resolves with its version. */
  async put(key: string, value: string | Uint8Array, options: WriteOptions = {}): Promise<number> {
    return this.#change("PUT", this.#path(key), `the write of the record "${key}"`, options, content(value));
  }

  /** Adds to the content of a record; one that does not exist begins empty. Resolves with its version. */
  async append(key: string, value: string | Uint8Array, options: WriteOptions = {}): Promise<number> {
    this.#checkAppend(neverComesBack(options.ifVersion ?? 0));
    const path = `${this.#path(key)}/append`;
    return this.#change("POST", path, `the append to the record "${key}"`, options, content(value));
  }

  /** Deletes a record; that there is none is no error. Resolves with the version of the transaction. */
  async delete(key: string, options: WriteOptions = {}): Promise<number> {
    return this.#change("DELETE", this.#path(key), `the deletion of the record "${key}"`, options);
  }

  /**
   * Makes all changes, in their order, if all conditions are met, and none otherwise: at most 32 of both. Resolves with
   * the version that the changed records have.
   */
  async transact(
    changes: readonly RecordChange[],
    conditions: readonly Condition[] = [],
    { signal }: { readonly signal?: AbortSignal } = {},
  ): Promise<number> {
    for (const one of conditions) if ("version" in one) checkVersion("version", one.version.version);
    const changed = new Set(changes.map(keyOf));
    const isGuarded = conditions.some(
      (one) => "version" in one && neverComesBack(one.version.version) && changed.has(one.version.key),
    );
    if (changes.some((change) => "append" in change)) this.#checkAppend(isGuarded);
    const json = JSON.stringify({
      conditions: conditions.map((one) =>
        "held" in one ? { held: { lock: one.held.key, token: one.held.token } } : { version: one.version },
      ),
      changes: changes.map(changeOf),
    });
    const body = bounded(new TextEncoder().encode(json), MOST_JSON_BYTES, "the transaction, as JSON,");
    const request = { method: "POST", path: "/v1/kv", headers: { "Content-Type": "application/json" }, body };
    return this.#write(request, "the transaction", isGuarded, signal);
  }

  #change(
    method: string,
    path: string,
    what: string,
    { lock, ifVersion, signal }: WriteOptions,
    body?: Uint8Array,
  ): Promise<number> {
    if (ifVersion !== undefined) checkVersion("ifVersion", ifVersion);
    const request = {
      method,
      path: pathOf(path, { lock: lock?.key, if_version: ifVersion }),
      ...(lock !== undefined && { headers: { "X-Fence-Token": String(lock.token) } }),
      ...(body !== undefined && { body }),
    };
    const isGuarded = ifVersion !== undefined && neverComesBack(ifVersion);
    return this.#write(request, what, isGuarded, signal);
  }

  #write(
    request: { method: string; path: string },
    what: string,
    isGuarded: boolean,
    signal: AbortSignal | undefined,
  ): Promise<number> {
    const kind: Kind = isGuarded ? "guarded" : "once";
    return this.#requests.ask(request, {
      what,
      kind,
      read: ({ body }) => count(parseObject(new TextDecoder().decode(body)), "version"),
      signal,
    });
  }

  #path(key: string): string {
    return this.#requests.pathOfKey("/v1/kv", key);
  }

  /** In a browser, only an append that cannot be done twice is sent. */
  #checkAppend(isGuarded: boolean): void {
    if (isGuarded || !this.#requests.platform.usesFetch) return;
    throw new TypeError("a browser may send an append twice: give it the version of the record, from 1");
  }
}

/**
 * Whether a record that is changed never has this version again, so that a write with this condition cannot be done
 * twice. Version 0 comes back when another client deletes the record that the first attempt has made.
 */
function neverComesBack(version: number): boolean {
  return version > 0;
}

function checkVersion(name: string, version: number): void {
  if (Number.isSafeInteger(version) && version >= 0) return;
  throw new RangeError(`\`${name}\` is ${version}; it must be an integer from 0`);
}

function content(value: string | Uint8Array): Uint8Array {
  return bounded(typeof value === "string" ? new TextEncoder().encode(value) : value, MOST_BYTES, "the content");
}

/** A server would refuse what is longer before it has read all, and the answer could be lost with the connection. */
function bounded(bytes: Uint8Array, most: number, what: string): Uint8Array {
  if (bytes.length <= most) return bytes;
  throw new Refused("too_large", `${what} has ${bytes.length} bytes; a server reads at most ${most}`);
}

function keyOf(change: RecordChange): string {
  if ("put" in change) return change.put.key;
  return "append" in change ? change.append.key : change.delete.key;
}

function changeOf(change: RecordChange): object {
  if ("put" in change) return { put: { key: change.put.key, value: valueOf(change.put.value) } };
  if ("append" in change) return { append: { key: change.append.key, value: valueOf(change.append.value) } };
  return { delete: { key: change.delete.key } };
}

function valueOf(value: string | Uint8Array): string | { base64: string } {
  if (typeof value === "string") return value;
  return { base64: btoa(Array.from(value, (byte) => String.fromCharCode(byte)).join("")) };
}

function number(header: Answer["header"], name: string): number | undefined {
  const text = header(name);
  if (text === undefined || text === "null") return undefined;
  const value = Number(text);
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(value)) {
    throw new WireError(`the header ${name} is "${text}" and not a number`);
  }
  return value;
}
