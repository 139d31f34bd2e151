/// <reference lib="esnext.disposable" preserve="true" />
/** What a holder has in its hands. */

import type { Driver, Grant } from "./driver.js";
import { LockLost } from "./errors.js";

/** `Symbol.asyncDispose`, also where the runtime does not have it yet. */
const asyncDispose: typeof Symbol.asyncDispose = (Symbol.asyncDispose ??
  Symbol.for("Symbol.asyncDispose")) as typeof Symbol.asyncDispose;

/**
 * A lock that was granted. It renews itself while this process answers the server, and nothing needs to be called for
 * that.
 *
 * **A lock can be lost while you work**, so stop when {@link Lock.signal} is aborted, and send {@link Lock.token} to
 * the resource with every write: no client can protect a resource that does not compare tokens from a process that was
 * paused (docs/fencing.md).
 */
export class Lock implements AsyncDisposable {
  /** The key, or the keys in the order in which they were asked for. */
  readonly keys: readonly string[];
  /** The fencing token: greater than that of every grant before it. One for all keys. */
  readonly token: number;
  /** The signed token, one for each key in order, if the servers sign grants (docs/fencing.md). */
  readonly signed: readonly string[];
  /** Resolves when the lock is lost, and never if it is released before. */
  readonly lost: Promise<LockLost>;
  readonly #driver: Driver;

  /** @internal */
  constructor(driver: Driver, keys: readonly string[], grant: Grant) {
    this.#driver = driver;
    this.keys = keys;
    this.token = grant.token;
    this.signed = signedInOrder(keys, grant);
    this.lost = new Promise((resolve) => {
      const tell = () => {
        if (driver.lostError !== undefined) resolve(driver.lostError);
      };
      if (driver.signal.aborted) tell();
      else driver.signal.addEventListener("abort", tell, { once: true });
    });
  }

  /** The first key. */
  get key(): string {
    return this.keys[0] ?? "";
  }

  /**
   * Whether the lock is held by this machine's clock at this moment. Once `false`, always `false`. It is `false` at the
   * first look after a pause beyond the lease, also before any timer has run.
   */
  get isValid(): boolean {
    return this.#driver.isHeld();
  }

  /** Milliseconds until the lease ends if the server does not renew it; 0 if the lock is not held. */
  get remainingMs(): number {
    return Math.floor(this.#driver.remainingMs());
  }

  /**
   * Aborted when the lock is lost, by the end of the lease at the latest, with the {@link LockLost} as its reason.
   * Never aborted after {@link Lock.release}. Hand it to `fetch` and to everything else that takes a signal.
   */
  get signal(): AbortSignal {
    return this.#driver.signal;
  }

  /**
   * Throws if the lock is not held at this moment.
   * @throws {@link LockLost}, with the code `released` if it was released.
   */
  throwIfLost(): void {
    if (this.#driver.isHeld()) return;
    throw this.#driver.lostError ?? new LockLost("released", `the lock "${this.key}" was released`);
  }

  /**
   * The headers that show the token to a resource behind HTTP: `X-Fence-Token`.
   * @throws {@link LockLost} if the lock is not held at this moment, so that a late write is not even sent.
   */
  headers(): { "X-Fence-Token": string } {
    this.throwIfLost();
    return { "X-Fence-Token": String(this.token) };
  }

  /**
   * Replaces the value that other clients see at the lock, as the address of a leader. Resolves when the change is
   * committed. Waits over reconnects, until the lock is released or lost.
   * @throws PalisadeError if a server refuses it, or the lock is not held any more.
   */
  setValue(value: string): Promise<void> {
    return this.#driver.setValue(value);
  }

  /**
   * Releases the lock. Resolves when a server has said so, or when the TTL is over; over a broken connection it is
   * repeated. From the call on, {@link Lock.isValid} is `false`. Further calls return the same promise.
   * @throws {@link LockLost} if the lock was lost before.
   */
  release(): Promise<void> {
    return this.#driver.release();
  }

  /** Releases the lock at the end of an `await using` block. */
  [asyncDispose](): Promise<void> {
    return this.release();
  }
}

/** The signed tokens in the order of `keys`; the server's order may be another one. */
function signedInOrder(keys: readonly string[], { signed, keys: order = keys }: Grant): readonly string[] {
  if (signed === undefined) return [];
  if (typeof signed === "string") return [signed];
  return keys.flatMap((key) => signed[order.indexOf(key)] ?? []);
}
