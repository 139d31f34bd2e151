/**
 * The client's side of the hold protocol, without sockets, timers or a clock: a state machine that is told what
 * happened and when, and says what to do.
 *
 * Four kinds of method: getters; `handle…`, which take what happened; commands of the user (`start`, `release`,
 * `cancel`, `setValue`); and `takeAction` and `nextTimeout`, which the driver polls after each call.
 *
 * Rules that hold at every moment:
 * - **The lease is counted from before sending.** Its base is the time at which the newest frame was handed out that
 *   the server has answered: the first frame of a connection, answered by `waiting` or `granted` (a server renews the
 *   session of a `resume` before it answers), or a `here`, answered by `renewed`. It ends a {@link margin} early, for the
 *   rate errors of this clock and the leader's, and so that the user has time to stop.
 * - **Every method looks at the lease first.** So no message, however late it is read, makes a lease valid again that
 *   has ended by this clock.
 * - **`lost` is told once, and never after `release`.**
 * - Only the newest connection (link) counts; what others say is ignored.
 */

import { type Address, redirectTarget } from "./endpoints.js";
import { LockLost, PalisadeError, Timeout, Unreachable } from "./errors.js";
import {
  type Action,
  type EngineEvent,
  GONE,
  type HttpRefusal,
  PASSING,
  type Patience,
  UNKNOWN_CLIENT,
  WAITED_FOR,
  httpFailure,
  refused,
} from "./events.js";
import type { Link, OpenLink } from "./link.js";
import type { Route } from "./route.js";
import { PendingValues } from "./values.js";
import {
  type Claim,
  type Failure,
  RELEASE_FRAME,
  type ServerMessage,
  WireError,
  acquireFrame,
  hereFrame,
  parseMessage,
  resumeFrame,
  valueFrame,
} from "./wire.js";

/** What the user has to stop after a loss: a share of the TTL, and its bounds in milliseconds. */
const REACTION_PART = 0.1;
const LEAST_REACTION_MS = 20;
const MOST_REACTION_MS = 1_000;
/** The share of a TTL that is kept for the rate errors of two clocks. */
const CLOCK_RATES_PART = 0.02;
/** The share of a TTL that is left to ask another server, when the connected one renews no more. */
const ANOTHER_SERVER_PART = 1 / 8;
/** How long a dial may take while no lock is held, in milliseconds. */
const DIAL_MS = 2_000;
/** How long the server's own end of a wait may be late, in milliseconds. */
const LATE_TIMEOUT_MS = 10_000;
/** How long a cancelled wait tries to leave the queue, in milliseconds. */
const ABANDON_MS = 2_000;
/** How long one server has to let a cancelled wait go, in milliseconds; another one is tried after it. */
const ABANDON_STEP_MS = 750;
/** The pause after `no_space` and `too_soon`, in milliseconds. */
const LONG_PAUSE_MS = 1_000;
/** How many unanswered `here` are remembered. */
const MOST_HERES = 16;

/**
 * `acquiring`: no session yet. `waiting`: a session, no grant. `held`. `releasing`: the user has released.
 * `abandoning`: the acquire has been answered, and the queue position is given up. `done`: nothing happens any more.
 */
export type Phase = "acquiring" | "waiting" | "held" | "releasing" | "abandoning" | "done";

/** One lock, or one claim on several keys, from the acquire to its end. */
export class Engine {
  readonly #claim: Claim;
  readonly #patience: Patience;
  readonly #route: Route;
  readonly #startedAt: number;
  readonly #actions: Action[] = [];
  readonly #values = new PendingValues();
  #phase: Phase = "acquiring";
  #link: Link;
  #links = 0;
  #session: string | undefined;
  #token: number | undefined;
  #ttlMs: number;
  /** When the newest counted frame was handed out. */
  #base = 0;
  #leaseEnd = 0;
  /** When a release or a cancelled wait is given up. */
  #endingUntil = 0;
  #releaseWasSent = false;
  /** Why the last connection or request failed; empty while all goes well. */
  #lastFailure = "";
  /** How many servers of the list in a row do not know this client. */
  #unknownTo = 0;
  /** What the last server said that does not know this client, until another one answers. */
  #unknown: PalisadeError | undefined;

  constructor(claim: Claim, patience: Patience, route: Route, now: number) {
    this.#claim = claim;
    this.#patience = patience;
    this.#route = route;
    this.#startedAt = now;
    this.#ttlMs = claim.ttlMs;
    this.#link = { state: "idle", retryAt: now };
  }

  get phase(): Phase {
    return this.#phase;
  }

  /** When the lease ends on the caller's clock, unless it is renewed. */
  get leaseEnd(): number {
    return this.#leaseEnd;
  }

  /** The next thing to do, if there is one. */
  takeAction(): Action | undefined {
    return this.#actions.shift();
  }

  /** When to call {@link handleTime} at the latest; `undefined` if there is nothing to wait for. */
  nextTimeout(): number | undefined {
    if (this.#phase === "done") return undefined;
    return Math.min(this.#phaseEnd(), this.#linkEnd());
  }

  /** Begins to acquire. */
  start(now: number): void {
    this.#dial(now);
  }

  /** Ends the lease if its time is over. Says whether the lock is held. */
  checkLease(now: number): boolean {
    if (this.#phase === "held" && now >= this.#leaseEnd) {
      const failure = this.#lastFailure === "" ? "" : `; the last failure: ${this.#lastFailure}`;
      this.#lose("expired", `the lease ended before a server renewed it${failure}`);
    }
    if (this.#phase === "releasing" && now >= this.#endingUntil) this.#finishRelease();
    return this.#phase === "held";
  }

  /** Releases the lock. The user is told `released`. */
  release(now: number): void {
    if (!this.checkLease(now)) return;
    this.#phase = "releasing";
    this.#endingUntil = this.#base + this.#ttlMs;
    this.#failValues(new PalisadeError("released", "the lock was released before the value was replaced"));
    if (this.#link.state === "open" && this.#link.answered) this.#sendRelease(this.#link, now);
  }

  /** Gives up an acquire that has not been granted; the caller has its answer already. */
  cancel(now: number): void {
    if (this.#phase === "acquiring" || this.#phase === "waiting") this.#abandon(now);
  }

  /** Replaces the value of the grant. The user is told `proclaimed` with the number that is returned. */
  setValue(value: string, now: number): number {
    const n = this.#values.add(value);
    if (this.checkLease(now)) this.#sendValue();
    else this.#failValues(new PalisadeError("not_holder", "the lock is not held any more, so its value stays"));
    return n;
  }

  /** The connection is open: the first frame goes out. */
  handleOpen(id: number, now: number): void {
    this.checkLease(now);
    const link = this.#link;
    if (link.state !== "dialling" || link.id !== id) return;
    const { address } = link;
    this.#link = {
      state: "open",
      id,
      address,
      openedAt: now,
      heardAt: now,
      answered: false,
      renewed: false,
      releaseSent: false,
      heres: new Map(),
    };
    this.#send(id, this.#firstFrame(now));
  }

  /** A frame arrived; `undefined` for one that is not text. */
  handleFrame(id: number, frame: string | undefined, now: number): void {
    this.checkLease(now);
    const link = this.#openLink(id);
    if (link === undefined) return;
    link.heardAt = now;
    try {
      if (frame === undefined) throw new WireError("a binary frame");
      this.#handleMessage(link, parseMessage(frame), now);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.#fail(`${link.address.host} sent what is not of the protocol: ${error.message}`, now);
    }
  }

  /** The server was heard, but said nothing of the protocol: a WebSocket ping. */
  handlePing(id: number, now: number): void {
    this.checkLease(now);
    const link = this.#openLink(id);
    if (link !== undefined) link.heardAt = now;
  }

  /** The server answered the upgrade with a status other than 101. */
  handleRefusal(id: number, refusal: HttpRefusal, now: number): void {
    this.checkLease(now);
    const link = this.#link;
    if (link.state !== "dialling" || link.id !== id) return;
    const failure = httpFailure(refusal);
    const target = refusal.location === undefined ? undefined : redirectTarget(refusal.location, link.address);
    this.#handleFailure(failure, now, target);
  }

  /** The connection could not be opened, or ended. */
  handleClosed(id: number, reason: string, now: number): void {
    this.checkLease(now);
    const link = this.#link;
    if (link.state === "idle" || link.id !== id) return;
    this.#fail(`${link.address.host}: ${reason}`, now, link.state === "open");
  }

  /** The time has come that {@link nextTimeout} named, or any other. */
  handleTime(now: number): void {
    this.checkLease(now);
    if (this.#phase === "done") return;
    if (now >= this.#phaseEnd()) this.#endPhase(now);
    else if (now >= this.#linkEnd()) this.#endLink(now);
  }

  #endPhase(now: number): void {
    if (this.#phase === "abandoning") return this.#finish();
    const link = this.#link;
    if (link.state === "open" && link.answered) {
      return this.#refuse(new Timeout(`${this.#name()} was not granted within ${this.#patience.waitMs} ms`), now);
    }
    // What is still under way has not failed yet: an earlier failure says more, such as which certificate was refused.
    const waits = link.state === "idle" ? "" : `${link.address.host} has not answered`;
    const failure = this.#lastFailure === "" ? waits : this.#lastFailure;
    const unreachable = `no server could serve ${this.#name()} in time; the last failure: ${failure}`;
    this.#refuse(this.#unknown ?? new Unreachable(unreachable), now);
  }

  #endLink(now: number): void {
    const link = this.#link;
    if (link.state === "idle") return this.#dial(now);
    // The server may read the acquire later: then it shall not keep a session of which this client knows nothing.
    if (this.#phase === "acquiring" && link.state === "open") this.#send(link.id, RELEASE_FRAME);
    this.#fail(`${link.address.host}: ${this.#fault(link, now)}`, now);
  }

  /** Why a link is given up. */
  #fault(link: Exclude<Link, { state: "idle" }>, now: number): string {
    if (link.state === "dialling") return "the connection was not opened in time";
    return now >= link.heardAt + this.#silenceMs(link) ? "the server is silent" : "the server did not renew the lease";
  }

  /** When the phase ends by time alone. */
  #phaseEnd(): number {
    const { waitMs, reachMs } = this.#patience;
    switch (this.#phase) {
      case "acquiring":
        return this.#startedAt + Math.max(waitMs, reachMs);
      case "waiting": {
        const isServed = this.#link.state === "open" && this.#link.answered;
        return this.#startedAt + Math.max(waitMs, reachMs) + (isServed ? LATE_TIMEOUT_MS : 0);
      }
      case "held":
        return this.#leaseEnd;
      case "releasing":
      case "abandoning":
        return this.#endingUntil;
      case "done":
        return Infinity;
    }
  }

  /** When the link needs attention. */
  #linkEnd(): number {
    const link = this.#link;
    if (link.state === "idle") return link.retryAt;
    if (link.state === "dialling") return link.until;
    return Math.min(link.heardAt + this.#silenceMs(link), this.#renewalDue(link));
  }

  /**
   * When to ask another server unless this one has renewed the lease: it may also talk and renew no more. The first
   * renewal over a link takes longer than the others, so that only those after it are waited for.
   */
  #renewalDue(link: OpenLink): number {
    return this.#phase === "held" && link.renewed ? this.#leaseEnd - this.#ttlMs * ANOTHER_SERVER_PART : Infinity;
  }

  /**
   * How long a server may say nothing. Checks come every third of the TTL, and half as much is allowed on top; with a
   * long TTL the pings in between count. An answer to a resume or a release is due sooner, so that there is time to ask
   * another server within the lease, or before a cancelled wait is left to its TTL.
   */
  #silenceMs(link: OpenLink): number {
    const ttl = this.#ttlMs;
    if (this.#phase === "acquiring") {
      const { waitMs, reachMs } = this.#patience;
      return clamp(ttl / 2, 300, clamp(Math.max(waitMs, reachMs) / 2, 1_000, 5_000));
    }
    if (this.#phase === "abandoning") return clamp(ttl / 6, 300, ABANDON_STEP_MS);
    if (!link.answered || link.releaseSent) return clamp(ttl / 6, 300, 3_000);
    const silence = Math.min(ttl / 2, this.#patience.silenceMs);
    return this.#phase === "waiting" ? Math.max(silence, 300) : silence;
  }

  #handleMessage(link: OpenLink, message: ServerMessage, now: number): void {
    switch (message.kind) {
      case "waiting":
        return this.#handleWaiting(link, message.session, message.ttlMs, now);
      case "granted":
        return this.#handleGranted(link, message, now);
      case "check":
        return this.#handleCheck(link, message.n, now);
      case "renewed":
        return this.#handleRenewed(link, message.n, message.ttlMs);
      case "proclaimed":
        this.#endValue(message.n);
        return this.#sendValue();
      case "released":
        if (this.#phase === "releasing") this.#finishRelease();
        else if (this.#phase === "abandoning") this.#finish();
        else throw new WireError("`released` without a release");
        return;
      case "lost":
        return this.#handleLost(message.failure, now);
      case "interrupted":
        return this.#handleInterrupted(link, message.failure, now);
      case "error":
        if (message.n !== undefined) return this.#handleRefusedValue(link, message.n, message.failure, now);
        return this.#handleFailure(message.failure, now);
      case "unknown":
        return;
    }
  }

  #handleWaiting(link: OpenLink, session: string, ttlMs: number, now: number): void {
    const isMine = this.#session === session;
    if (this.#token !== undefined && !isMine) throw new WireError("`waiting` with another session than the holder's");
    this.#session = session;
    this.#answered(link, ttlMs, now);
    if (this.#phase === "acquiring") this.#phase = "waiting";
  }

  #handleGranted(link: OpenLink, grant: Extract<ServerMessage, { kind: "granted" }>, now: number): void {
    this.#session ??= grant.session;
    if (this.#session !== grant.session) throw new WireError("`granted` to another session");
    const isOther = this.#phase === "held" && grant.token !== this.#token;
    if (isOther) {
      return this.#lose("not_holder", `the grant with token ${this.#token} has ended: the server knows ${grant.token}`);
    }
    this.#answered(link, grant.ttlMs, now);
    if (this.#phase === "acquiring" || this.#phase === "waiting") this.#takeGrant(link, grant, now);
    else if (this.#phase === "held") this.#sendValue();
  }

  #takeGrant(link: OpenLink, grant: Extract<ServerMessage, { kind: "granted" }>, now: number): void {
    this.#ttlMs = this.#believed(grant.ttlMs);
    this.#leaseEnd = leaseEnd(this.#base, this.#ttlMs);
    if (now >= this.#leaseEnd) return this.#giveBack(link, now);
    this.#token = grant.token;
    this.#phase = "held";
    const keys = grant.keys === undefined ? {} : { keys: grant.keys };
    const signed = grant.signed === undefined ? {} : { signed: grant.signed };
    this.#tell({ kind: "granted", token: grant.token, ...keys, ...signed });
  }

  /** The process stood still when the grant came, and its lease is over. The wait goes on, if it is not over, too. */
  #giveBack(link: OpenLink, now: number): void {
    const message = `${this.#name()} was granted, but its lease (of a TTL of ${this.#ttlMs} ms) was over when this was read`;
    const isOver = now >= this.#startedAt + this.#patience.waitMs;
    if (isOver) return this.#refuse(new LockLost("expired", message), now);
    this.#send(link.id, RELEASE_FRAME);
    this.#acquireAnew({ code: "expired", message }, now);
  }

  /** The first frame of the link was answered: the lease counts from it, and what waited for the answer can be sent. */
  #answered(link: OpenLink, ttlMs: number, now: number): void {
    if (link.answered) return;
    link.answered = true;
    this.#renew(link.openedAt, ttlMs);
    this.#route.succeeded(link.address);
    this.#lastFailure = "";
    this.#unknownTo = 0;
    this.#unknown = undefined;
    const isEnding = this.#phase === "releasing" || this.#phase === "abandoning";
    if (isEnding && !link.releaseSent) this.#sendRelease(link, now);
  }

  /** The session lives for a TTL after a frame that was handed out at this time. */
  #renew(sentAt: number, ttlMs: number): void {
    if (sentAt < this.#base) return;
    this.#base = sentAt;
    this.#ttlMs = this.#believed(ttlMs);
    if (this.#phase === "held") this.#leaseEnd = Math.max(this.#leaseEnd, leaseEnd(sentAt, this.#ttlMs));
  }

  /** A server that promises a longer TTL than was asked for is not believed. */
  #believed(ttlMs: number): number {
    return Math.min(ttlMs, this.#claim.ttlMs);
  }

  #handleCheck(link: OpenLink, n: number, now: number): void {
    if (link.releaseSent) return;
    // A number that was seen before keeps its first time: the server may mean that one.
    if (!link.heres.has(n)) link.heres.set(n, now);
    if (link.heres.size > MOST_HERES) link.heres.delete(link.heres.keys().next().value ?? n);
    this.#send(link.id, hereFrame(n));
  }

  #handleRenewed(link: OpenLink, n: number, ttlMs: number): void {
    const sentAt = link.heres.get(n);
    if (sentAt === undefined) return;
    link.heres.delete(n);
    link.renewed = true;
    this.#renew(sentAt, ttlMs);
  }

  /** A value was refused: for good, or because this server cannot serve now. Then it is sent to the next server. */
  #handleRefusedValue(link: OpenLink, n: number, failure: Failure, now: number): void {
    if (PASSING.has(failure.code)) return this.#handleInterrupted(link, failure, now);
    this.#endValue(n, refused(failure));
    this.#sendValue();
  }

  #handleLost(failure: Failure, now: number): void {
    switch (this.#phase) {
      case "acquiring":
        throw new WireError("`lost` before `waiting`");
      case "waiting":
        return this.#acquireAnew(failure, now);
      case "held":
        return this.#lose(failure.code, failure.message);
      case "releasing": {
        // After a release whose answer was lost, this is that answer.
        const wasLostBefore = !this.#releaseWasSent;
        return this.#finishRelease(wasLostBefore ? new LockLost(failure.code, failure.message) : undefined);
      }
      case "abandoning":
        return this.#finish();
      case "done":
    }
  }

  #handleInterrupted(link: OpenLink, failure: Failure, now: number): void {
    const leader = failure.leader === undefined ? undefined : redirectTarget(failure.leader, link.address);
    this.#passOn(link.address, failure, now, leader);
  }

  /** A refusal: the body of an HTTP error, or an `error` frame. */
  #handleFailure(failure: Failure, now: number, location?: Address): void {
    const link = this.#link;
    if (link.state === "idle") return;
    const { address } = link;
    const leader = failure.leader === undefined ? undefined : redirectTarget(failure.leader, address);
    const isPassing = PASSING.has(failure.code) || failure.code === "" || this.#isOfServer(failure, link, now);
    switch (this.#phase) {
      case "acquiring":
      case "waiting":
        if (isPassing) return this.#passOn(address, failure, now, location ?? leader);
        if (WAITED_FOR.has(failure.code) && this.#patience.waitMs > 0) return this.#retryLater(address, failure, now);
        if (failure.code === "no_session" && this.#phase === "waiting") return this.#acquireAnew(failure, now);
        if (failure.code === "unauthenticated" && this.#mayBeKnown(failure, address)) {
          return this.#passOn(address, failure, now, undefined);
        }
        this.#tell({ kind: "refused", error: this.#refusal(failure, now) });
        return this.#finish();
      case "held":
      case "releasing":
        if (GONE.has(failure.code)) return this.#handleLost(failure, now);
        // The server could not read a frame. A value that was sent over this link would be refused again and again.
        if (failure.code === "invalid") this.#failValues(refused(failure), link.id);
        return this.#passOn(address, failure, now, location ?? leader);
      case "abandoning":
        return isPassing ? this.#passOn(address, failure, now, location ?? leader) : this.#finish();
      case "done":
    }
  }

  /**
   * Whether a refusal says nothing about the session, so that another server may go on with that while it lives: a
   * server that refuses to open a connection has not read which session asks. One that does not know the client may say
   * so in answer to the `resume`.
   */
  #isOfServer({ code }: Failure, link: Link, now: number): boolean {
    if (this.#session === undefined || now >= this.#base + this.#ttlMs) return false;
    return link.state === "dialling" || (link.state === "open" && !link.answered && UNKNOWN_CLIENT.has(code));
  }

  /** Whether another server of the list may know this client: the file of tokens of this one may be older. */
  #mayBeKnown(failure: Failure, address: Address): boolean {
    this.#unknown = refused(failure);
    if (this.#route.has(address)) this.#unknownTo += 1;
    return this.#unknownTo < this.#route.size;
  }

  /** The error that the user is told. A wait whose end came during a reconnect leaves nothing to wait for: `held`. */
  #refusal(failure: Failure, now: number): PalisadeError {
    const { waitMs } = this.#patience;
    const isOver = failure.code === "held" && waitMs > 0 && now >= this.#startedAt + waitMs;
    return isOver ? new Timeout(`${failure.message}; it was not granted within ${waitMs} ms`) : refused(failure);
  }

  /** This server cannot serve now: another one may, after a longer pause if the cluster asks for one. */
  #passOn(address: Address, failure: Failure, now: number, leader: Address | undefined): void {
    this.#lastFailure = `${address.host} answered ${failure.code || "an error"}: ${failure.message}`;
    const isRedirected = leader !== undefined;
    const pause = isRedirected ? this.#route.redirected(leader, address) : this.#route.failed(address, true);
    this.#reconnect(now, WAITED_FOR.has(failure.code) ? Math.max(pause, LONG_PAUSE_MS) : pause);
  }

  #retryLater(address: Address, failure: Failure, now: number): void {
    this.#lastFailure = `${address.host} answered ${failure.code}: ${failure.message}`;
    this.#reconnect(now, LONG_PAUSE_MS);
  }

  /** The session ended while it waited: another one takes its place at the end of the queue. */
  #acquireAnew(failure: Failure, now: number): void {
    this.#session = undefined;
    this.#phase = "acquiring";
    this.#lastFailure = `the session ended while it waited: ${failure.message}`;
    const link = this.#link;
    this.#reconnect(now, link.state === "idle" ? 0 : this.#route.failed(link.address, true));
  }

  /** The link cannot be used any more. */
  #fail(reason: string, now: number, reached = false): void {
    this.#lastFailure = reason;
    const link = this.#link;
    this.#reconnect(now, link.state === "idle" ? 0 : this.#route.failed(link.address, reached));
  }

  #reconnect(now: number, pauseMs: number): void {
    this.#closeLink();
    if (this.#phase === "abandoning" && this.#session === undefined) return this.#finish();
    this.#link = { state: "idle", retryAt: now + pauseMs };
    if (pauseMs === 0) this.#dial(now);
  }

  #dial(now: number): void {
    const id = ++this.#links;
    const address = this.#route.next();
    this.#link = { state: "dialling", id, address, until: now + this.#dialMs() };
    this.#actions.push({ do: "connect", link: id, address });
  }

  /** How long a dial may take: less if time is short, so that another server can be tried. */
  #dialMs(): number {
    if (this.#phase === "abandoning") return ABANDON_STEP_MS;
    const isBound = this.#phase === "held" || this.#phase === "releasing";
    return isBound ? clamp(this.#ttlMs / 4, 300, DIAL_MS) : DIAL_MS;
  }

  #firstFrame(now: number): string {
    const waitMs = Math.max(0, Math.ceil(this.#startedAt + this.#patience.waitMs - now));
    if (this.#session === undefined) return acquireFrame(this.#claim, waitMs);
    const token = this.#token === undefined ? {} : { token: this.#token };
    return resumeFrame(this.#claim, { session: this.#session, ...token }, waitMs);
  }

  #sendRelease(link: OpenLink, now: number): void {
    link.releaseSent = true;
    link.heardAt = now;
    this.#send(link.id, RELEASE_FRAME);
  }

  #sendValue(): void {
    const link = this.#link;
    if (this.#phase !== "held" || link.state !== "open" || !link.answered) return;
    const unsent = this.#values.takeUnsent(link.id);
    if (unsent !== undefined) this.#send(link.id, valueFrame(unsent.n, unsent.value));
  }

  #endValue(n: number, error?: PalisadeError): void {
    if (!this.#values.delete(n)) return;
    this.#tell({ kind: "proclaimed", n, ...(error !== undefined && { error }) });
  }

  /** Fails all values, or the one that was sent over this link. */
  #failValues(error: PalisadeError, link?: number): void {
    for (const n of this.#values.numbers(link)) this.#endValue(n, error);
  }

  #lose(code: string, message: string): void {
    const grant = this.#token === undefined ? "" : ` (token ${this.#token})`;
    const error = new LockLost(code, `${this.#name()}${grant} is lost (${code}): ${message}`);
    this.#finish();
    this.#tell({ kind: "lost", error });
    this.#failValues(error);
  }

  #finishRelease(error?: LockLost): void {
    this.#finish();
    this.#tell({ kind: "released", ...(error !== undefined && { error }) });
  }

  #refuse(error: PalisadeError, now: number): void {
    this.#tell({ kind: "refused", error });
    this.#abandon(now);
  }

  /** Leaves the queue, or gives back a grant that the caller did not take, without making the caller wait for it. */
  #abandon(now: number): void {
    this.#phase = "abandoning";
    this.#endingUntil = now + Math.min(ABANDON_MS, this.#ttlMs);
    const link = this.#link;
    if (link.state === "open") this.#sendRelease(link, now);
    else if (this.#session === undefined) this.#finish();
    else if (link.state === "dialling") this.#link = { ...link, until: Math.min(link.until, now + ABANDON_STEP_MS) };
  }

  #finish(): void {
    this.#phase = "done";
    this.#closeLink();
  }

  #closeLink(): void {
    const link = this.#link;
    if (link.state === "idle") return;
    if (link.state === "open" && link.releaseSent) this.#releaseWasSent = true;
    this.#link = { state: "idle", retryAt: Infinity };
    this.#actions.push({ do: "close", link: link.id });
  }

  #openLink(id: number): OpenLink | undefined {
    return this.#link.state === "open" && this.#link.id === id ? this.#link : undefined;
  }

  #send(link: number, text: string): void {
    this.#actions.push({ do: "send", link, text });
  }

  #tell(event: EngineEvent): void {
    this.#actions.push({ do: "tell", event });
  }

  #name(): string {
    const { keys } = this.#claim;
    return typeof keys === "string" ? `the lock "${keys}"` : `the locks ${keys.map((key) => `"${key}"`).join(", ")}`;
  }
}

/** When a lock of a session that was renewed by a frame sent then counts as lost, unless it is renewed again. */
function leaseEnd(sentAt: number, ttlMs: number): number {
  return sentAt + ttlMs - margin(ttlMs);
}

/**
 * How long before its nominal end a lease counts as over, in milliseconds, as in the other clients (docs/protocol.md,
 * "Cluster time").
 */
function margin(ttlMs: number): number {
  return clamp(ttlMs * REACTION_PART, LEAST_REACTION_MS, MOST_REACTION_MS) + ttlMs * CLOCK_RATES_PART;
}

function clamp(value: number, least: number, most: number): number {
  return Math.min(Math.max(value, least), most);
}
