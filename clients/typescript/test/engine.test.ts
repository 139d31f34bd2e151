// The rules of the engine, in virtual time and without a network.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { type Address, parseEndpoints } from "../src/endpoints.js";
import { Engine } from "../src/engine.js";
import { Held, LockLost, Refused, Timeout, Unreachable } from "../src/errors.js";
import type { Action, EngineEvent } from "../src/events.js";
import { Route } from "../src/route.js";
import type { Claim } from "../src/wire.js";

const SESSION = "00000000-0000-0001-a3d2-6ffe1fa85f94";
const CLAIM: Claim = { keys: "nightly", ttlMs: 3_000, owner: "worker-7" };

interface WorldOptions {
  readonly claim?: Partial<Claim>;
  readonly waitMs?: number;
  readonly reachMs?: number;
  readonly silenceMs?: number;
  readonly endpoints?: string;
}

/** An engine, and what it has said so far. */
class World {
  now = 1_000;
  readonly dialled: { link: number; address: Address }[] = [];
  readonly frames: unknown[] = [];
  readonly closed: number[] = [];
  readonly events: EngineEvent[] = [];
  readonly engine: Engine;

  constructor(options: WorldOptions = {}) {
    const claim = { ...CLAIM, ...options.claim };
    const { waitMs = 0, reachMs = 5_000, silenceMs = 30_000 } = options;
    const patience = { waitMs, reachMs, silenceMs };
    const route = new Route(parseEndpoints(options.endpoints ?? "a:1,b:2", false), {}, () => 0);
    this.engine = new Engine(claim, patience, route, this.now);
    this.engine.start(this.now);
    this.drain();
  }

  get link(): number {
    return this.dialled.at(-1)?.link ?? 0;
  }

  get host(): string {
    return this.dialled.at(-1)?.address.host ?? "";
  }

  drain(): void {
    for (let action = this.engine.takeAction(); action !== undefined; action = this.engine.takeAction()) {
      this.#take(action);
    }
  }

  #take(action: Action): void {
    if (action.do === "connect") this.dialled.push(action);
    else if (action.do === "send") this.frames.push(JSON.parse(action.text));
    else if (action.do === "close") this.closed.push(action.link);
    else this.events.push(action.event);
  }

  do(work: (engine: Engine, now: number) => void): this {
    work(this.engine, this.now);
    this.drain();
    return this;
  }

  open(): this {
    return this.do((engine, now) => engine.handleOpen(this.link, now));
  }

  say(message: object, link = this.link): this {
    return this.do((engine, now) => engine.handleFrame(link, JSON.stringify(message), now));
  }

  cut(link = this.link): this {
    return this.do((engine, now) => engine.handleClosed(link, "cut", now));
  }

  /** Lets the time pass, with every timer at its moment. */
  pass(ms: number): this {
    const end = this.now + ms;
    for (let due = this.engine.nextTimeout(); due !== undefined && due <= end; due = this.engine.nextTimeout()) {
      this.now = Math.max(this.now, due);
      this.do((engine, now) => engine.handleTime(now));
    }
    this.now = end;
    return this;
  }

  waiting(ttl_ms = 3_000): this {
    return this.say({ waiting: { session: SESSION, ttl_ms } });
  }

  granted(token = 17, ttl_ms = 3_000): this {
    return this.say({ granted: { key: "nightly", token, session: SESSION, ttl_ms } });
  }

  /** A lock that is held, by a frame that was sent now. */
  static held(options: WorldOptions = {}): World {
    return new World(options).open().waiting().granted();
  }

  get kinds(): string[] {
    return this.events.map(({ kind }) => kind);
  }

  /** The error of the last event. */
  get error(): unknown {
    const event = this.events.at(-1);
    return event !== undefined && "error" in event ? event.error : undefined;
  }
}

describe("acquire", () => {
  it("sends the claim in the first frame and tells of the grant", () => {
    const world = World.held({
      claim: { permits: 2, of: 5, maxQueue: 10, value: "here" },
      waitMs: 700,
    });
    assert.deepEqual(world.frames, [
      {
        acquire: {
          key: "nightly",
          ttl_ms: 3_000,
          owner: "worker-7",
          permits: 2,
          of: 5,
          wait_ms: 700,
          max_queue: 10,
          value: "here",
        },
      },
    ]);
    assert.deepEqual(world.events, [{ kind: "granted", token: 17 }]);
    assert.equal(world.engine.phase, "held");
  });

  it("counts the lease from the time at which the acquire was sent, less the margin", () => {
    const world = new World().open();
    world.pass(200).waiting().pass(50).granted();
    assert.equal(world.engine.leaseEnd, 1_000 + 2_640);
  });

  it("keeps a reaction time, bounded on both sides, and 2 % of the TTL", () => {
    for (const [ttlMs, reactionMs] of [
      [100, 20],
      [1_000, 100],
      [10_000, 1_000],
      [86_400_000, 1_000],
    ] as const) {
      const world = new World({ claim: { ttlMs } }).open().waiting(ttlMs).granted(17, ttlMs);
      assert.equal(world.engine.leaseEnd, 1_000 + ttlMs - reactionMs - ttlMs / 50);
    }
  });

  it("does not believe a server that promises more than was asked for", () => {
    const world = new World().open().waiting(60_000).granted(17, 60_000);
    assert.equal(world.engine.leaseEnd, 1_000 + 2_640);
    world.pass(1_000).say({ check: { n: 1 } }).say({ renewed: { n: 1, ttl_ms: 60_000 } });
    assert.equal(world.engine.leaseEnd, 2_000 + 2_640);
  });

  it("counts the lease of a grant after a wait from the newest renewed `here`", () => {
    const world = new World({ waitMs: 60_000 }).open().waiting();
    world
      .pass(1_000)
      .say({ check: { n: 1 } })
      .pass(100)
      .say({ renewed: { n: 1, ttl_ms: 3_000 } });
    world
      .pass(900)
      .say({ check: { n: 2 } })
      .pass(10)
      .granted();
    assert.equal(world.engine.leaseEnd, 2_000 + 2_640);
  });

  it("does not take a grant whose lease is over when it is read", () => {
    const world = new World({ waitMs: 1_000 }).open().waiting();
    world.now += 2_640;
    world.granted();
    assert.ok(world.error instanceof LockLost);
    assert.deepEqual(world.kinds, ["refused"]);
    assert.deepEqual(world.frames.at(-1), { release: {} });
  });

  it("gives such a grant back and goes on waiting, if there is time", () => {
    const world = new World({ waitMs: 60_000 }).open().waiting();
    world.now += 2_640;
    world.granted();
    assert.deepEqual(world.events, []);
    assert.deepEqual(world.frames.at(-1), { release: {} });
    world.pass(50).open();
    assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["acquire"]);
    world.say({ waiting: { session: "other", ttl_ms: 3_000 } });
    world.say({ granted: { key: "nightly", token: 18, session: "other", ttl_ms: 3_000 } });
    assert.deepEqual(world.events, [{ kind: "granted", token: 18 }]);
  });

  it("names the refusals of the server", () => {
    const held = new World().open().waiting();
    held.say({ error: { error: "held", message: "no", holder: { owner: "x", token: 5 }, queue: 2 } });
    assert.ok(held.error instanceof Held);
    assert.deepEqual([held.error.holder, held.error.queue], [{ owner: "x", token: 5 }, 2]);
    const timeout = new World({ waitMs: 10 })
      .open()
      .waiting()
      .say({ error: { error: "timeout", message: "no" } });
    assert.ok(timeout.error instanceof Timeout);
    const denied = new World().open().say({ error: { error: "denied", message: "no" } });
    assert.ok(denied.error instanceof Refused);
    assert.equal(denied.error.code, "denied");
    for (const world of [held, timeout, denied]) assert.equal(world.engine.nextTimeout(), undefined);
  });

  it("tries every endpoint at once, then pauses, and gives up at the end of its time", () => {
    const world = new World({ endpoints: "a:1,b:2" });
    assert.equal(world.host, "a:1");
    world.cut();
    assert.equal(world.host, "b:2");
    world.cut();
    assert.equal(world.dialled.length, 2);
    world.pass(50);
    assert.equal(world.host, "a:1");
    world.pass(60_000);
    assert.ok(world.error instanceof Unreachable);
    assert.deepEqual(world.kinds, ["refused"]);
    assert.equal(world.engine.phase, "done");
  });

  it("tries every endpoint of a list that names one twice", () => {
    const world = new World({ endpoints: "a:1,a:1,b:2" }).open().cut().pass(50);
    assert.equal(world.host, "b:2");
    assert.equal(world.open().cut().pass(50).host, "a:1");
  });

  it("says what has failed, not what was under way when its time ended", () => {
    const failed = new World({ endpoints: "a:1", reachMs: 1_500 });
    failed.cut().pass(1_500);
    assert.match(String(failed.error), /the last failure: a:1: cut/);
    const silent = new World({ endpoints: "a:1", reachMs: 200 });
    silent.open().pass(200);
    assert.match(String(silent.error), /the last failure: a:1 has not answered/);
  });

  it("follows a redirect at once, and pauses after a few of them", () => {
    const world = new World({ endpoints: "a:1" });
    const redirect = (to: string) => {
      const body = JSON.stringify({ error: "not_leader", message: "", leader: { id: 2, client_addr: to } });
      const refusal = { status: 307, location: `http://${to}/v1/hold`, body };
      world.do((engine, now) => engine.handleRefusal(world.link, refusal, now));
    };
    redirect("c:3");
    assert.equal(world.host, "c:3");
    for (const host of ["d:4", "c:3", "d:4", "c:3"]) redirect(host);
    assert.equal(world.dialled.length, 5);
    world.pass(50);
    assert.equal(world.dialled.length, 6);
    assert.equal(world.host, "c:3");
  });

  it("does not follow a redirect to the server that was silent just now, at first", () => {
    const world = World.held({ endpoints: "a:1,b:2,c:3" }).pass(1_500);
    const hosts = [];
    for (let step = 0; step < 5; step++) {
      hosts.push(world.host);
      const refusal = { status: 307, location: "http://a:1/v1/hold", body: "" };
      world.do((engine, now) => engine.handleRefusal(world.link, refusal, now)).pass(250);
    }
    assert.deepEqual(hosts, ["b:2", "c:3", "b:2", "c:3", "a:1"]);
  });

  it("calls a wait that ended during a reconnect a timeout", () => {
    const held = { error: { error: "held", message: "held" } };
    const world = new World({ waitMs: 1_000 }).open().waiting().pass(900).cut().pass(200).open().say(held);
    assert.ok(world.error instanceof Timeout);
    assert.ok(new World({ waitMs: 1_000 }).open().say(held).error instanceof Held);
  });

  it("never follows a redirect out of TLS", () => {
    const world = new World({ endpoints: "https://a:1,https://b:2" });
    const refusal = { status: 307, location: "http://evil:1/v1/hold", body: "" };
    world.do((engine, now) => engine.handleRefusal(world.link, refusal, now)).pass(50);
    assert.deepEqual(
      world.dialled.map(({ address }) => address),
      [
        { host: "a:1", secure: true },
        { host: "b:2", secure: true },
      ],
    );
  });

  it("never follows a leader's address out of TLS", () => {
    const leader = { id: 2, client_addr: "http://evil:1" };
    const failure = { error: "not_leader", message: "", leader };
    const refusal = { status: 421, body: JSON.stringify(failure) };
    const answers = [
      (world: World) => world.do((engine, now) => engine.handleRefusal(world.link, refusal, now)),
      (world: World) => world.open().say({ error: failure }),
      (world: World) => world.open().waiting().say({ interrupted: failure }),
      (world: World) => world.open().waiting().granted().say({ interrupted: failure }),
    ];
    for (const answer of answers) {
      const world = answer(new World({ waitMs: 10_000, endpoints: "https://a:1,https://b:2" })).pass(50);
      assert.deepEqual(
        world.dialled.map(({ address }) => address),
        [
          { host: "a:1", secure: true },
          { host: "b:2", secure: true },
        ],
      );
    }
  });

  it("retries a server without a leader, with the rest of its wait", () => {
    const world = new World({ waitMs: 1_000, endpoints: "a:1" });
    const refusal = { status: 503, body: JSON.stringify({ error: "no_leader", message: "" }) };
    world
      .do((engine, now) => engine.handleRefusal(world.link, refusal, now))
      .pass(50)
      .open();
    assert.equal((world.frames[0] as { acquire: { wait_ms: number } }).acquire.wait_ms, 950);
  });

  it("acquires again after a connection that ended before `waiting`, and resumes after it", () => {
    const world = new World({ waitMs: 10_000, claim: { value: "v", maxQueue: 3 } }).open().cut().pass(50).open();
    assert.deepEqual(
      world.frames.map((frame) => Object.keys(frame as object)),
      [["acquire"], ["acquire"]],
    );
    world.waiting().pass(100).cut().pass(50).open();
    assert.deepEqual(world.frames.at(-1), {
      resume: {
        key: "nightly",
        ttl_ms: 3_000,
        owner: "worker-7",
        session: SESSION,
        wait_ms: 9_800,
        max_queue: 3,
        value: "v",
      },
    });
  });

  it("counts the lease of a grant after a resume from the resume", () => {
    const world = new World({ waitMs: 10_000 }).open().waiting().pass(500).cut().pass(50).open();
    world.pass(20).waiting().pass(30).granted();
    assert.equal(world.engine.leaseEnd, 1_550 + 2_640);
  });

  it("stands in the queue anew when its session has ended", () => {
    const world = new World({ waitMs: 10_000 }).open().waiting().cut().pass(50).open();
    world
      .say({ lost: { error: "no_session", message: "" } })
      .pass(100)
      .open();
    assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["acquire"]);
    world.say({ waiting: { session: "other", ttl_ms: 3_000 } });
    world.say({ granted: { key: "nightly", token: 18, session: "other", ttl_ms: 3_000 } });
    assert.deepEqual(world.events, [{ kind: "granted", token: 18 }]);
  });

  const unauthenticated = { status: 401, body: JSON.stringify({ error: "unauthenticated", message: "who?" }) };
  const misdirected = { status: 421, body: JSON.stringify({ error: "wrong_host", message: "another name" }) };

  it("goes on at another server with its queue position when one refuses it", () => {
    for (const refusal of [unauthenticated, misdirected]) {
      const world = new World({ waitMs: 10_000 }).open().waiting().pass(100).cut().pass(50);
      world.do((engine, now) => engine.handleRefusal(world.link, refusal, now));
      assert.deepEqual(world.events, []);
      world.pass(100).open();
      // The server has read the resume, and does not know this client.
      world.say({ error: { error: "denied", message: "" } }).pass(200).open();
      assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["resume"]);
      world.granted();
      assert.deepEqual(world.kinds, ["granted"]);
    }
  });

  it("ends with the refusal when all servers refuse it until its session is over", () => {
    const world = new World({ waitMs: 10_000 }).open().waiting().cut();
    while (world.engine.phase === "waiting") {
      world.pass(50).do((engine, now) => engine.handleRefusal(world.link, unauthenticated, now));
    }
    assert.ok(world.error instanceof Refused);
    assert.equal(world.error.code, "unauthenticated");
    assert.ok(world.now >= 1_000 + 3_000 && world.now < 1_000 + 3_500, `${world.now}`);
    const denied = new World({ waitMs: 10_000 }).open().waiting();
    denied.say({ error: { error: "denied", message: "" } });
    assert.ok(denied.error instanceof Refused);
  });

  it("asks all servers whether they know its client", () => {
    const refuse = (world: World) =>
      world.do((engine, now) => engine.handleRefusal(world.link, unauthenticated, now)).pass(50);
    const stranger = refuse(new World({ waitMs: 10_000 }));
    assert.deepEqual([stranger.host, stranger.events], ["b:2", []]);
    refuse(stranger);
    assert.ok(stranger.error instanceof Refused);
    assert.equal(stranger.error.code, "unauthenticated");
    const known = refuse(new World()).open().waiting().granted();
    assert.deepEqual(known.kinds, ["granted"]);
    // The other one cannot be reached.
    const alone = refuse(new World()).cut().pass(60_000);
    assert.ok(alone.error instanceof Refused);
    assert.equal(alone.error.code, "unauthenticated");
  });

  it("takes a server that another one names for none of the list", () => {
    const world = new World();
    const body = JSON.stringify({ error: "not_leader", message: "", leader: { id: 3, client_addr: "c:3" } });
    const redirect = { status: 307, location: "http://c:3/v1/hold", body };
    world.do((engine, now) => engine.handleRefusal(world.link, redirect, now));
    for (const host of ["c:3", "a:1"]) {
      assert.equal(world.host, host);
      world.do((engine, now) => engine.handleRefusal(world.link, unauthenticated, now)).pass(50);
    }
    assert.equal(world.host, "b:2");
    assert.deepEqual(world.open().waiting().granted().kinds, ["granted"]);
  });

  it("leaves the queue over another server if one refuses it", () => {
    const world = new World({ claim: { ttlMs: 30_000 }, waitMs: 60_000 }).open().waiting(30_000).cut().pass(50);
    world
      .do((engine, now) => engine.cancel(now))
      .do((engine, now) => engine.handleRefusal(world.link, unauthenticated, now))
      .pass(100)
      .open()
      .waiting(30_000);
    assert.deepEqual(world.frames.at(-1), { release: {} });
  });

  it("asks another server when its acquire is not answered, and takes the first one back", () => {
    const world = new World({ endpoints: "a:1,b:2" }).open().pass(1_499);
    assert.equal(world.dialled.length, 1);
    world.pass(1);
    assert.deepEqual(world.frames.at(-1), { release: {} });
    assert.equal(world.host, "b:2");
    world.open().waiting().granted();
    assert.deepEqual(world.kinds, ["granted"]);
  });

  it("gives up by itself when the server does not end the wait", () => {
    const options = { claim: { ttlMs: 60_000 }, waitMs: 1_000, reachMs: 500 };
    const world = new World(options).open().waiting(60_000).pass(11_000);
    assert.ok(world.error instanceof Timeout);
    assert.deepEqual(world.frames.at(-1), { release: {} });
  });

  it("waits for disk space if it waits at all", () => {
    const error = { error: { error: "no_space", message: "" } };
    assert.ok(new World().open().say(error).error instanceof Refused);
    const world = new World({ waitMs: 5_000 }).open().say(error).pass(999);
    assert.equal(world.dialled.length, 1);
    assert.equal(world.pass(1).dialled.length, 2);
  });

  it("pauses for a second when the server asks for fewer requests", () => {
    for (const leader of [null, { id: 3, client_addr: "c:3" }]) {
      const world = new World({ waitMs: 5_000 }).open().waiting();
      world.say({ interrupted: { error: "too_soon", message: "", leader } }).pass(999);
      assert.equal(world.dialled.length, 1);
      assert.equal(world.pass(1).dialled.length, 2);
      world.open();
      assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["resume"]);
    }
  });

  it("leaves the queue when it is cancelled", () => {
    const world = new World({ waitMs: 60_000 })
      .open()
      .waiting()
      .do((engine, now) => engine.cancel(now));
    assert.deepEqual(world.frames.at(-1), { release: {} });
    world.granted();
    assert.deepEqual(world.events, []);
    world.say({ released: {} });
    assert.equal(world.engine.phase, "done");
  });

  it("leaves the queue over another server if the first one is silent", () => {
    const world = new World({ claim: { ttlMs: 30_000 }, waitMs: 60_000 })
      .open()
      .waiting(30_000)
      .do((engine, now) => engine.cancel(now))
      .pass(1_000);
    assert.equal(world.host, "b:2");
    world.open();
    assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["resume"]);
    world.waiting(30_000);
    assert.deepEqual(world.frames.at(-1), { release: {} });
    world.say({ released: {} });
    assert.equal(world.engine.phase, "done");
  });

  it("leaves the queue over another server if the first one cannot be reached", () => {
    const world = new World({ claim: { ttlMs: 30_000 }, waitMs: 60_000, endpoints: "a:1,b:2,c:3" })
      .open()
      .waiting(30_000)
      .cut()
      .pass(50);
    assert.equal(world.host, "b:2");
    world.do((engine, now) => engine.cancel(now)).pass(1_000);
    assert.equal(world.host, "c:3");
    world.open();
    assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["resume"]);
  });

  it("does not wait for an answer to a cancel for ever", () => {
    const world = new World({ waitMs: 60_000 })
      .open()
      .waiting()
      .do((engine, now) => engine.cancel(now))
      .pass(2_000);
    assert.equal(world.engine.phase, "done");
    assert.equal(world.engine.nextTimeout(), undefined);
  });
});

describe("the lease", () => {
  it("is renewed from the time at which `here` was sent, not from that of `renewed`", () => {
    const world = World.held()
      .pass(1_000)
      .say({ check: { n: 1 } });
    assert.deepEqual(world.frames.at(-1), { here: 1 });
    world.pass(400).say({ renewed: { n: 1, ttl_ms: 3_000 } });
    assert.equal(world.engine.leaseEnd, 2_000 + 2_640);
  });

  it("is renewed from the first of two `here` with the same number", () => {
    const world = World.held()
      .pass(1_000)
      .say({ check: { n: 1 } })
      .pass(400)
      .say({ check: { n: 1 } });
    world.say({ renewed: { n: 1, ttl_ms: 3_000 } });
    assert.equal(world.engine.leaseEnd, 2_000 + 2_640);
  });

  it("is renewed from the time at which an answered resume was sent", () => {
    const world = World.held().pass(1_000).cut().pass(50).open();
    assert.equal(world.engine.leaseEnd, 1_000 + 2_640);
    world.pass(100).granted();
    assert.equal(world.engine.leaseEnd, 2_050 + 2_640);
  });

  it("is not renewed by a number of an earlier connection, or by one that was never sent", () => {
    const world = World.held()
      .pass(1_000)
      .say({ check: { n: 1 } })
      .cut()
      .pass(50)
      .open()
      .granted();
    world
      .pass(100)
      .say({ renewed: { n: 1, ttl_ms: 9_000 } })
      .say({ renewed: { n: 9, ttl_ms: 9_000 } });
    assert.equal(world.engine.leaseEnd, 2_050 + 2_640);
  });

  it("ends by the clock when the server is silent, once", () => {
    const world = World.held().pass(2_639);
    assert.deepEqual(world.kinds, ["granted"]);
    world.pass(1);
    assert.deepEqual(world.kinds, ["granted", "lost"]);
    assert.equal((world.error as LockLost).code, "expired");
    world.pass(60_000).granted();
    assert.deepEqual(world.kinds, ["granted", "lost"]);
    assert.equal(world.engine.nextTimeout(), undefined);
  });

  it("does not come back by a `renewed` that is read after its end", () => {
    const world = World.held()
      .pass(1_000)
      .say({ check: { n: 1 } });
    world.now += 2_000;
    world.say({ renewed: { n: 1, ttl_ms: 3_000 } });
    assert.deepEqual(world.kinds, ["granted", "lost"]);
  });

  it("is over at the first look after a pause", () => {
    const world = World.held();
    world.now += 2_640;
    assert.equal(world.engine.checkLease(world.now), false);
    world.drain();
    assert.deepEqual(world.kinds, ["granted", "lost"]);
  });

  it("ends when the server says so", () => {
    const world = World.held().say({ lost: { error: "not_holder", message: "broken by an operator" } });
    assert.deepEqual(world.kinds, ["granted", "lost"]);
    assert.equal((world.error as LockLost).code, "not_holder");
    assert.deepEqual(world.closed, [1]);
  });
});

describe("a reconnect of a holder", () => {
  it("resumes with the session, the token and no old value", () => {
    const world = World.held({ claim: { value: "old", maxQueue: 3, mode: "shared" } })
      .pass(100)
      .cut()
      .pass(50)
      .open();
    assert.equal(world.host, "b:2");
    assert.deepEqual(world.frames.at(-1), {
      resume: { key: "nightly", ttl_ms: 3_000, owner: "worker-7", mode: "shared", session: SESSION, token: 17 },
    });
    world
      .waiting()
      .granted()
      .say({ check: { n: 1 } })
      .say({ renewed: { n: 1, ttl_ms: 3_000 } });
    assert.deepEqual(world.kinds, ["granted"]);
    assert.equal(world.engine.leaseEnd, 1_150 + 2_640);
  });

  it("goes to the leader that an interruption names", () => {
    const interrupted = { error: "leadership_lost", message: "", leader: { id: 3, client_addr: "c:3" } };
    const world = World.held().say({ interrupted });
    assert.equal(world.host, "c:3");
    assert.deepEqual(world.closed, [1]);
  });

  it("ignores what an older connection says", () => {
    const world = World.held().cut().pass(50).open();
    world.say({ lost: { error: "no_session", message: "" } }, 1).cut(1);
    assert.deepEqual(world.kinds, ["granted"]);
    assert.equal(world.engine.phase, "held");
  });

  it("happens when the server is silent for half a TTL, and again when a resume is not answered", () => {
    const world = World.held().pass(1_499);
    assert.equal(world.dialled.length, 1);
    world.pass(1);
    assert.deepEqual(world.closed, [1]);
    world.pass(50).open();
    assert.equal(world.host, "b:2");
    world.pass(500 + 75);
    assert.deepEqual(world.closed, [1, 2]);
  });

  it("happens when not even a ping comes, though the TTL is long and checks are rare", () => {
    const hour = 3_600_000;
    const options = { claim: { ttlMs: hour }, waitMs: 60_000 };
    const waiter = new World(options).open().waiting(hour);
    const holder = new World(options).open().waiting(hour).granted(17, hour);
    for (const world of [waiter, holder]) {
      world.pass(20_000).do((engine, now) => engine.handlePing(world.link, now));
      world.pass(29_999);
      assert.equal(world.dialled.length, 1);
      world.pass(1);
      assert.deepEqual([world.host, world.closed], ["b:2", [1]]);
      world.open();
      assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["resume"]);
    }
  });

  it("needs half a TTL of silence where pings are not seen", () => {
    const hour = 3_600_000;
    const options = { claim: { ttlMs: hour }, waitMs: 60_000, silenceMs: Infinity };
    const world = new World(options).open().waiting(hour).granted(17, hour).pass(hour / 2 - 1);
    assert.equal(world.dialled.length, 1);
    assert.equal(world.pass(1).dialled.length, 2);
  });

  it("happens when a server talks and renews no more, with time left to ask another one", () => {
    const world = World.held()
      .say({ check: { n: 1 } })
      .say({ renewed: { n: 1, ttl_ms: 3_000 } });
    for (let step = 0; step < 2; step++) world.pass(1_000).do((engine, now) => engine.handlePing(1, now));
    world.pass(264);
    assert.equal(world.dialled.length, 1);
    world.pass(1);
    assert.deepEqual([world.closed, world.engine.phase], [[1], "held"]);
    world.pass(75);
    assert.equal(world.host, "b:2");
  });

  it("takes a ping for a sign of life", () => {
    const world = World.held()
      .pass(1_000)
      .do((engine, now) => engine.handlePing(1, now))
      .pass(1_200);
    assert.equal(world.dialled.length, 1);
  });

  it("loses the lock when the session is gone, or holds it by another token", () => {
    const gone = World.held()
      .cut()
      .pass(50)
      .open()
      .say({ error: { error: "no_session", message: "" } });
    assert.equal((gone.error as LockLost).code, "no_session");
    const other = World.held().cut().pass(50).open().waiting().granted(18);
    assert.equal((other.error as LockLost).code, "not_holder");
  });

  it("keeps the lock over refusals that say nothing about it, until the lease ends", () => {
    const world = World.held({ endpoints: "a:1" }).cut().pass(100).open();
    world.say({ error: { error: "denied", message: "not today" } });
    assert.equal(world.engine.phase, "held");
    world.pass(3_000);
    assert.equal((world.error as LockLost).code, "expired");
  });

  it("follows garbage of every kind", () => {
    const garbage = [
      "",
      "null",
      "[]",
      "7",
      "{}",
      "{",
      '{"check":{"n":1},"lost":{}}',
      '{"check":{}}',
      '{"check":{"n":-1}}',
      '{"check":{"n":1.5}}',
      '{"renewed":{"n":1}}',
      '{"renewed":{"n":1,"ttl_ms":1e99}}',
      '{"lost":{}}',
      '{"lost":7}',
      '{"granted":{"token":0,"session":"x","ttl_ms":1}}',
      `{"granted":{"token":9007199254740993,"session":"${SESSION}","ttl_ms":1}}`,
      '{"granted":{"token":17,"session":"another","ttl_ms":3000}}',
      '{"waiting":{"session":"another","ttl_ms":3000}}',
      '{"released":{}}',
      '{"error":{"message":"x"}}',
      undefined,
    ];
    for (const frame of garbage) {
      const world = World.held().do((engine, now) => engine.handleFrame(1, frame, now));
      assert.deepEqual(world.closed, [1], `after ${frame}`);
      assert.equal(world.engine.phase, "held", `after ${frame}`);
      assert.deepEqual(world.kinds, ["granted"], `after ${frame}`);
    }
  });

  it("is not needed for kinds and fields that this client does not know", () => {
    const world = World.held()
      .say({ news: {} })
      .say({ check: { n: 1, more: true } });
    assert.deepEqual(world.closed, []);
    assert.deepEqual(world.frames.at(-1), { here: 1 });
  });
});

describe("release", () => {
  it("is sent at once and ends with `released`", () => {
    const world = World.held().do((engine, now) => engine.release(now));
    assert.deepEqual(world.frames.at(-1), { release: {} });
    assert.equal(world.engine.checkLease(world.now), false);
    world.say({ check: { n: 1 } });
    assert.deepEqual(world.frames.at(-1), { release: {} });
    world.say({ released: {} });
    assert.deepEqual(world.events.at(-1), { kind: "released" });
    assert.equal(world.engine.nextTimeout(), undefined);
  });

  it("is repeated when its answer is lost, and a lost lock is then the answer", () => {
    const world = World.held()
      .do((engine, now) => engine.release(now))
      .cut()
      .pass(50)
      .open();
    assert.deepEqual(Object.keys(world.frames.at(-1) as object), ["resume"]);
    world.say({ lost: { error: "no_session", message: "" } });
    assert.deepEqual(world.kinds, ["granted", "released"]);
    assert.equal(world.error, undefined);
  });

  it("is repeated when its first sending was lost", () => {
    const world = World.held()
      .do((engine, now) => engine.release(now))
      .cut()
      .pass(50)
      .open()
      .waiting();
    assert.deepEqual(world.frames.at(-1), { release: {} });
    world.granted();
    assert.equal(world.frames.filter((frame) => "release" in (frame as object)).length, 2);
    world.say({ released: {} });
    assert.deepEqual(world.events.at(-1), { kind: "released" });
  });

  it("is sent after a reconnect that was under way", () => {
    const world = World.held()
      .cut()
      .do((engine, now) => engine.release(now))
      .pass(50)
      .open()
      .waiting();
    assert.deepEqual(world.frames.at(-1), { release: {} });
  });

  it("ends with the TTL, and is no loss", () => {
    const world = World.held()
      .pass(1_000)
      .do((engine, now) => engine.release(now))
      .pass(1_999);
    assert.deepEqual(world.kinds, ["granted"]);
    world.pass(1);
    assert.deepEqual(world.kinds, ["granted", "released"]);
    assert.equal(world.error, undefined);
    world.pass(60_000);
    assert.deepEqual(world.kinds, ["granted", "released"]);
  });

  it("reports a lock that was lost before the release reached the server", () => {
    const world = World.held().do((engine, now) => engine.release(now));
    world.say({ lost: { error: "not_holder", message: "broken" } });
    assert.deepEqual(world.kinds, ["granted", "released"]);
    assert.equal((world.error as LockLost).code, "not_holder");
  });
});

describe("a value", () => {
  it("is sent with a number and confirmed by it", () => {
    const world = World.held().do((engine, now) => engine.setValue("x", now));
    assert.deepEqual(world.frames.at(-1), { value: { n: 1, value: "x" } });
    world.say({ proclaimed: { n: 1 } }).say({ proclaimed: { n: 1 } });
    assert.deepEqual(world.events.slice(1), [{ kind: "proclaimed", n: 1 }]);
  });

  it("is sent again after a reconnect", () => {
    const world = World.held()
      .do((engine, now) => engine.setValue("x", now))
      .cut()
      .pass(50)
      .open()
      .waiting()
      .granted();
    assert.deepEqual(world.frames.at(-1), { value: { n: 1, value: "x" } });
    assert.equal(world.frames.filter((frame) => "value" in (frame as object)).length, 2);
  });

  it("fails alone when the server refuses it", () => {
    const world = World.held().do((engine, now) => engine.setValue("x", now));
    world.say({ error: { n: 1, error: "invalid", message: "too long" } });
    assert.ok(world.error instanceof Refused);
    assert.equal(world.engine.phase, "held");
  });

  it("waits for the answer to the one before it, also after a reconnect", () => {
    const world = World.held();
    for (let n = 1; n <= 18; n++) world.do((engine, now) => engine.setValue(`v${n}`, now));
    const sent = () => world.frames.flatMap((frame) => (frame as { value?: { n: number } }).value?.n ?? []);
    assert.deepEqual(sent(), [1]);
    // The first server may have applied the value. Its repetition comes before every later value.
    world.cut().pass(50).open().granted();
    assert.deepEqual(sent(), [1, 1]);
    world.say({ proclaimed: { n: 1 } }).say({ error: { n: 2, error: "invalid", message: "" } });
    assert.deepEqual(sent(), [1, 1, 2, 3]);
    world.say({ error: { error: "invalid", message: "the frame has more than 16 KiB" } });
    world.pass(100).open().granted();
    assert.deepEqual(sent(), [1, 1, 2, 3, 4]);
    assert.equal(world.engine.phase, "held");
  });

  it("is sent to the next leader when the server loses leadership", () => {
    const world = World.held().do((engine, now) => engine.setValue("x", now));
    world
      .say({ error: { n: 1, error: "leadership_lost", message: "" } })
      .pass(50)
      .open()
      .granted();
    assert.deepEqual(world.frames.at(-1), { value: { n: 1, value: "x" } });
    assert.deepEqual(world.kinds, ["granted"]);
    world.say({ proclaimed: { n: 1 } });
    assert.deepEqual(world.kinds, ["granted", "proclaimed"]);
  });

  it("is not sent again when the server could not read it", () => {
    const world = World.held().do((engine, now) => engine.setValue("x".repeat(20_000), now));
    world.say({ error: { error: "invalid", message: "the frame has more than 16 KiB" } });
    assert.ok(world.error instanceof Refused);
    const sent = world
      .pass(50)
      .open()
      .granted()
      .frames.filter((frame) => "value" in (frame as object));
    assert.equal(sent.length, 1);
    assert.equal(world.engine.phase, "held");
  });

  it("fails when the lock is lost or released first", () => {
    const lost = World.held()
      .do((engine, now) => engine.setValue("x", now))
      .pass(3_000);
    assert.deepEqual(lost.kinds, ["granted", "lost", "proclaimed"]);
    assert.ok(lost.error instanceof LockLost);
    const released = World.held()
      .do((engine, now) => engine.setValue("x", now))
      .do((engine, now) => engine.release(now));
    assert.deepEqual(released.kinds, ["granted", "proclaimed"]);
  });
});
