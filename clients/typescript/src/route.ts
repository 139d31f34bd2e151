/** Which server to dial next: where the leader was seen last, where a server points, or the next of the list. */

import type { Address } from "./endpoints.js";

/** What the locks of one client share: the server that answered last as the leader. */
export interface RouteMemory {
  last?: Address;
}

/** How many redirects are followed without a pause. */
const MOST_HOPS = 5;
/** How many redirects to a server that did not answer are not followed. */
const MOST_SKIPPED = 3;
/** A pause is random, from the shortest to a bound that begins here and doubles. */
const SHORTEST_PAUSE_MS = 50;
const FIRST_BOUND_MS = 100;
const LONGEST_PAUSE_MS = 500;

function same(one: Address, other: Address): boolean {
  return one.host === other.host && one.secure === other.secure;
}

/** The route of one lock. */
export class Route {
  readonly #addresses: readonly Address[];
  readonly #memory: RouteMemory;
  readonly #random: () => number;
  #hint: Address | undefined;
  #cursor = 0;
  #failures = 0;
  #hops = 0;
  #boundMs = FIRST_BOUND_MS;
  /** The server that did not answer, and how many redirects to it are not followed. Meanwhile it loses its turn. */
  #silent: { address: Address; redirects: number } | undefined;

  /** @param random a number from 0 (included) to 1 (excluded), for the jitter of pauses */
  constructor(addresses: readonly Address[], memory: RouteMemory, random: () => number) {
    // A server that is named twice would hide those after it: the next one is found by the address of the last.
    this.#addresses = addresses.filter((one, index) => addresses.findIndex((other) => same(one, other)) === index);
    this.#memory = memory;
    this.#random = random;
    this.#hint = memory.last;
  }

  /** How many servers the list has. */
  get size(): number {
    return this.#addresses.length;
  }

  /** Whether the list has this server. */
  has(address: Address): boolean {
    return this.#addresses.some((one) => same(one, address));
  }

  /** The server to dial now. */
  next(): Address {
    const hint = this.#hint;
    this.#hint = undefined;
    const address = hint ?? this.#addresses[this.#cursor % this.#addresses.length];
    if (address === undefined) throw new Error("a route has at least one address");
    return address;
  }

  /** The server at `address` answered as the leader does. */
  succeeded(address: Address): void {
    this.#memory.last = address;
    this.#failures = 0;
    this.#hops = 0;
    this.#boundMs = FIRST_BOUND_MS;
    this.#silent = undefined;
  }

  /**
   * The server at `from` named the leader. Says how many milliseconds to pause before dialling it.
   *
   * A follower names the leader until it notices that it is gone. So the server that did not answer just now is not
   * dialled at once, which may take long: others are asked again first.
   */
  redirected(target: Address, from: Address): number {
    const silent = this.#silent;
    if (silent !== undefined && same(silent.address, target) && silent.redirects > 0) {
      silent.redirects -= 1;
      this.#moveOnFrom(from);
      return this.#pause();
    }
    this.#hint = target;
    this.#hops += 1;
    if (this.#hops < MOST_HOPS) return 0;
    this.#hops = 0;
    return this.#pause();
  }

  /**
   * The server at `address` could not be reached or could not help. Says how many milliseconds to pause before the next
   * server is dialled: none while there are servers that have not been tried, because the leader may be one of them.
   */
  failed(address: Address, reached: boolean): number {
    if (this.#memory.last !== undefined && same(this.#memory.last, address)) delete this.#memory.last;
    if (!reached) this.#silent = { address, redirects: MOST_SKIPPED };
    if (!this.#moveOnFrom(address)) return this.#pause();
    this.#failures += 1;
    return reached || this.#failures % this.#addresses.length === 0 ? this.#pause() : 0;
  }

  /** The next server after `address` has its turn. Says whether `address` is in the list. */
  #moveOnFrom(address: Address): boolean {
    const index = this.#addresses.findIndex((one) => same(one, address));
    if (index === -1) return false;
    const silent = this.#silent;
    const next = this.#addresses[(index + 1) % this.#addresses.length];
    const isSilent = silent !== undefined && next !== undefined && silent.redirects > 0 && same(silent.address, next);
    this.#cursor = index + (isSilent ? 2 : 1);
    return true;
  }

  #pause(): number {
    const pause = SHORTEST_PAUSE_MS + this.#random() * (this.#boundMs - SHORTEST_PAUSE_MS);
    this.#boundMs = Math.min(this.#boundMs * 2, LONGEST_PAUSE_MS);
    return pause;
  }
}
