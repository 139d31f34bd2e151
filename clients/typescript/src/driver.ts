/**
 * Connects an {@link Engine} with sockets, timers and the clock. It decides nothing: it reads the clock, tells the
 * engine what happened, and does what the engine says, in that order, so that the time of a frame is read before it is
 * sent.
 */

import { Engine } from "./engine.js";
import type { LockLost, PalisadeError } from "./errors.js";
import type { EngineEvent, Patience } from "./events.js";
import type { Platform, Socket } from "./platform.js";
import type { Route } from "./route.js";
import type { Claim } from "./wire.js";

/** How late a suspend is noticed at the most, after the machine has resumed, in milliseconds. */
const RECHECK_MS = 500;
/** The longest timer, in milliseconds: longer ones overflow in JavaScript. */
const LONGEST_TIMER_MS = 60_000;

/** What a grant says. */
export interface Grant {
  readonly token: number;
  readonly keys?: readonly string[];
  readonly signed?: string | readonly string[];
}

interface Waiter<T> {
  resolve(value: T): void;
  reject(error: unknown): void;
}

/** One lock at work. */
export class Driver {
  readonly #platform: Platform;
  readonly #engine: Engine;
  readonly #lost = new AbortController();
  readonly #values = new Map<number, Waiter<void>>();
  #socket: { readonly link: number; readonly socket: Socket } | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #granted: Waiter<Grant> | undefined;
  #released: Waiter<void> | undefined;
  #release: Promise<void> | undefined;
  #lostError: LockLost | undefined;

  constructor(platform: Platform, claim: Claim, patience: Patience, route: Route) {
    this.#platform = platform;
    this.#engine = new Engine(claim, patience, route, platform.clock.now());
  }

  /** Aborted when the lock is lost; its reason is the {@link LockLost}. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Why the lock is lost, if it is. */
  get lostError(): LockLost | undefined {
    return this.#lostError;
  }

  /** Acquires. Rejects with `signal`'s reason as soon as that is aborted before the grant. */
  acquire(signal: AbortSignal | undefined): Promise<Grant> {
    if (signal?.aborted === true) return Promise.reject(signal.reason);
    return new Promise<Grant>((resolve, reject) => {
      const cancel = () => {
        this.#granted = undefined;
        reject(signal?.reason);
        this.#run((now) => this.#engine.cancel(now));
      };
      const answered = () => signal?.removeEventListener("abort", cancel);
      this.#granted = {
        resolve: (grant) => (answered(), resolve(grant)),
        reject: (error) => (answered(), reject(error)),
      };
      signal?.addEventListener("abort", cancel, { once: true });
      this.#run((now) => this.#engine.start(now));
    });
  }

  /** Milliseconds until the lease ends by the clock as it is now; 0 if the lock is not held. */
  remainingMs(): number {
    let remaining = 0;
    this.#run((now) => {
      if (this.#engine.checkLease(now)) remaining = Math.max(0, this.#engine.leaseEnd - now);
    });
    return remaining;
  }

  /** Whether the lock is held by the clock as it is now. */
  isHeld(): boolean {
    let isHeld = false;
    this.#run((now) => (isHeld = this.#engine.checkLease(now)));
    return isHeld;
  }

  /** Releases, once; rejects with {@link LockLost} if the lock was lost before. */
  release(): Promise<void> {
    this.#release ??= new Promise<void>((resolve, reject) => {
      this.#run((now) => {
        if (!this.#engine.checkLease(now)) return;
        this.#released = { resolve, reject };
        this.#engine.release(now);
      });
      if (this.#lostError !== undefined) reject(this.#lostError);
    });
    return this.#release;
  }

  /** Replaces the value of the grant. */
  setValue(value: string): Promise<void> {
    return new Promise<void>((resolve, reject) => {
      this.#run((now) => {
        const n = this.#engine.setValue(value, now);
        this.#values.set(n, { resolve, reject });
      });
    });
  }

  /** Tells the engine something at the time that the clock shows, and does what follows. */
  #run(input: (now: number) => void): void {
    input(this.#platform.clock.now());
    for (let action = this.#engine.takeAction(); action !== undefined; action = this.#engine.takeAction()) {
      switch (action.do) {
        case "connect":
          this.#connect(action.link, action.address);
          break;
        case "send":
          if (this.#socket?.link === action.link) this.#socket.socket.send(action.text);
          break;
        case "close":
          if (this.#socket?.link === action.link) this.#closeSocket();
          break;
        case "tell":
          this.#tell(action.event);
      }
    }
    this.#arm();
  }

  #connect(link: number, address: Parameters<Platform["connect"]>[0]): void {
    const engine = this.#engine;
    const handlers = {
      opened: () => this.#run((now) => engine.handleOpen(link, now)),
      received: (frame: string | undefined) => this.#run((now) => engine.handleFrame(link, frame, now)),
      pinged: () => this.#run((now) => engine.handlePing(link, now)),
      refused: (refusal: Parameters<Engine["handleRefusal"]>[1]) =>
        this.#run((now) => engine.handleRefusal(link, refusal, now)),
      closed: (reason: string) => this.#run((now) => engine.handleClosed(link, reason, now)),
    };
    try {
      this.#socket = { link, socket: this.#platform.connect(address, handlers) };
    } catch (error) {
      queueMicrotask(() => handlers.closed(String(error)));
    }
  }

  #closeSocket(): void {
    this.#socket?.socket.close();
    this.#socket = undefined;
  }

  #tell(event: EngineEvent): void {
    switch (event.kind) {
      case "granted":
        this.#granted?.resolve(event);
        break;
      case "refused":
        this.#granted?.reject(event.error);
        break;
      case "lost":
        this.#lostError = event.error;
        this.#lost.abort(event.error);
        break;
      case "released":
        this.#settle(this.#released, event.error);
        break;
      case "proclaimed": {
        const waiter = this.#values.get(event.n);
        this.#values.delete(event.n);
        this.#settle(waiter, event.error);
      }
    }
  }

  #settle(waiter: Waiter<void> | undefined, error: PalisadeError | undefined): void {
    if (error === undefined) waiter?.resolve();
    else waiter?.reject(error);
  }

  /**
   * Sets the timer for what comes next. A timer that fires looks at the lease at once, and at everything else after the
   * messages that have arrived: a process that was busy must not take its own delay for the server's silence.
   */
  #arm(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const due = this.#engine.nextTimeout();
    if (due === undefined) return;
    const { clock, afterArrivals } = this.#platform;
    const delay = Math.max(0, Math.ceil(due - clock.now()));
    const longest = clock.outlivesTimers ? RECHECK_MS : LONGEST_TIMER_MS;
    this.#timer = setTimeout(
      () => {
        this.#run((now) => void this.#engine.checkLease(now));
        afterArrivals(() => this.#run((now) => this.#engine.handleTime(now)));
      },
      Math.min(delay, longest),
    );
  }
}
