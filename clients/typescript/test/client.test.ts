// The client over real WebSockets, at a server that follows a script.

import assert from "node:assert/strict";
import { type AddressInfo, createServer } from "node:net";
import { describe, it } from "node:test";
import { Client, Held, LockLost, PalisadeError, Refused, Timeout, Unreachable } from "palisade-lock";
import { FakeServer, SESSION, block, isSettled, sleep } from "./fake-server.js";

describe("a client", () => {
  it("does a job under a lock and releases it", async () => {
    await using server = await FakeServer.start();
    const done = new Client(server.endpoint).withLock("nightly", { ttlMs: 3_000, waitMs: 500 }, async (lock) => {
      assert.equal(lock.token, 17);
      assert.equal(lock.isValid, true);
      assert.ok(lock.remainingMs > 0 && lock.remainingMs <= 2_640);
      assert.deepEqual(lock.headers(), { "X-Fence-Token": "17" });
      lock.throwIfLost();
      return "result";
    });
    const peer = await server.peer();
    const { owner, wait_ms, ...asked } = await peer.grant();
    assert.deepEqual(asked, { key: "nightly", ttl_ms: 3_000 });
    assert.ok(wait_ms <= 500, "the time to connect is a part of the wait");
    assert.match(owner, new RegExp(`:${process.pid}$`));
    assert.deepEqual(await peer.expect("release"), {});
    assert.equal(await isSettled(done), false);
    peer.send({ released: {} });
    assert.equal(await done, "result");
    await peer.ended();
    assert.equal(server.requests[0]?.url, "/v1/hold");
    assert.equal(server.requests[0]?.headers.origin, undefined);
  });

  it("asks for several keys, and gives one signed token for each", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint, { owner: "w" }).lock(["a", "b"], { mode: "shared" });
    const peer = await server.peer();
    const asked = await peer.expect("acquire");
    assert.deepEqual(asked, { keys: ["a", "b"], ttl_ms: 30_000, owner: "w", mode: "shared", wait_ms: 0 });
    peer.send({ granted: { keys: ["b", "a"], token: 3, session: SESSION, ttl_ms: 30_000, signed: ["s2", "s1"] } });
    const lock = await acquiring;
    assert.deepEqual([lock.keys, lock.token, lock.signed], [["a", "b"], 3, ["s1", "s2"]]);
    await release(lock, peer);
  });

  it("answers checks, and a renewal lengthens the lease", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint).lock("nightly", { ttlMs: 3_000 });
    const peer = await server.peer();
    await peer.grant();
    const lock = await acquiring;
    await sleep(300);
    const before = lock.remainingMs;
    peer.send({ check: { n: 7 } });
    assert.equal(await peer.expect("here"), 7);
    peer.send({ renewed: { n: 7, ttl_ms: 3_000 } });
    while (lock.remainingMs <= before) await sleep(5);
    await release(lock, peer);
  });

  it("says so when the server requires TLS", async () => {
    const server = createServer((socket) =>
      socket.once("data", () => socket.end(Buffer.from([0x15, 3, 3, 0, 2, 2, 50]))),
    );
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const asked = new Client(`127.0.0.1:${port}`, { reachMs: 2_000 }).lock("nightly");
    await assert.rejects(asked, (error) => error instanceof Unreachable && /requires TLS: give/.test(error.message));
    server.close();
  });

  it("resumes after a cut, and the application is not told", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint).lock("nightly", { ttlMs: 6_000 });
    const first = await server.peer();
    await first.grant(17, 6_000);
    const lock = await acquiring;
    first.cut();
    const second = await server.peer();
    const resumed = await second.grant(17, 6_000);
    assert.equal(resumed.session, SESSION);
    assert.equal(resumed.token, 17);
    second.send({ check: { n: 1 } });
    assert.equal(await second.expect("here"), 1);
    assert.equal(lock.isValid, true);
    assert.equal(lock.signal.aborted, false);
    await release(lock, second);
  });

  it("follows the redirect of a follower", async () => {
    await using leader = await FakeServer.start();
    await using follower = await FakeServer.start();
    follower.refuse = {
      head: `307 Temporary Redirect\r\nLocation: http://${leader.endpoint}/v1/hold`,
      body: { error: "not_leader", message: "", leader: { id: 2, client_addr: leader.endpoint } },
    };
    const client = new Client(follower.endpoint);
    const acquiring = client.lock("nightly");
    const peer = await leader.peer();
    await peer.grant();
    await release(await acquiring, peer);
    // The next lock begins where the leader was.
    const again = client.lock("nightly");
    const next = await leader.peer();
    await next.grant();
    await release(await again, next);
    assert.equal(follower.requests.length, 1);
  });

  it("tells of a loss by the end of the lease when the server is frozen", async () => {
    await using server = await FakeServer.start();
    const startedAt = performance.now();
    const acquiring = new Client(server.endpoint).lock("nightly", { ttlMs: 1_500 });
    await (await server.peer()).grant(17, 1_500);
    const lock = await acquiring;
    server.refuse = "silence";
    const aborted = new Promise<number>((resolve) => {
      lock.signal.addEventListener("abort", () => resolve(performance.now()));
    });
    const error = await lock.lost;
    assert.ok(error instanceof LockLost);
    assert.match(error.message, /^the lock "[^"]+" \(token \d+\) is lost/);
    assert.equal(error.code, "expired");
    assert.equal(lock.signal.reason, error);
    assert.ok((await aborted) - startedAt >= 1_320);
    assert.ok(server.requests.length > 1, "it has tried to reconnect");
    assert.equal(lock.isValid, false);
    assert.equal(lock.remainingMs, 0);
    assert.throws(() => lock.headers(), LockLost);
    await assert.rejects(lock.release(), LockLost);
    await assert.rejects(lock.setValue("x"), PalisadeError);
  });

  it("is not valid at the first look after the event loop was blocked beyond the lease", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint).lock("nightly", { ttlMs: 3_000 });
    await (await server.peer()).grant(17, 3_000);
    const lock = await acquiring;
    assert.equal(lock.isValid, true);
    let events = 0;
    lock.signal.addEventListener("abort", () => (events += 1));
    block(3_000);
    assert.equal(lock.isValid, false);
    assert.equal(events, 1);
    await sleep(20);
    assert.equal(events, 1);
  });

  it("does not take its own delay for the silence of the server", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint).lock("nightly", { ttlMs: 8_000 });
    const peer = await server.peer();
    await peer.grant(17, 8_000);
    const lock = await acquiring;
    peer.send({ check: { n: 1 } });
    await new Promise((resolve) => setImmediate(resolve));
    block(4_300);
    assert.equal(await peer.expect("here"), 1);
    await sleep(50);
    assert.equal(server.requests.length, 1);
    await release(lock, peer);
  });

  it("tells of a lock that an operator broke", async () => {
    await using server = await FakeServer.start();
    const working = new Client(server.endpoint).withLock("nightly", async (lock) => {
      const error = await lock.lost;
      assert.equal(error.code, "not_holder");
      assert.match(error.message, /it hangs since noon/);
      return "the result does not count";
    });
    const peer = await server.peer();
    await peer.grant();
    peer.send({ lost: { error: "not_holder", message: "broken: it hangs since noon" } });
    await assert.rejects(working, LockLost);
    await peer.ended();
  });

  it("keeps the error of the work, also when the lock is lost", async () => {
    await using server = await FakeServer.start();
    const failure = new Error("the work failed");
    const working = new Client(server.endpoint).withLock("nightly", async (lock) => {
      await lock.lost;
      throw failure;
    });
    const peer = await server.peer();
    await peer.grant();
    peer.send({ lost: { error: "no_session", message: "" } });
    await assert.rejects(working, failure);
  });

  it("repeats a release whose reply is lost, and takes a lost lock for the reply", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint).lock("nightly", { ttlMs: 10_000 });
    const first = await server.peer();
    await first.grant(17, 10_000);
    const lock = await acquiring;
    const released = lock.release();
    assert.equal(lock.isValid, false);
    assert.equal(lock.release(), released);
    await first.expect("release");
    first.cut();
    const second = await server.peer();
    await second.expect("resume");
    second.send({ lost: { error: "no_session", message: "" } });
    await released;
    assert.equal(lock.signal.aborted, false);
    assert.equal(await isSettled(lock.lost), false);
    assert.throws(() => lock.throwIfLost(), { code: "released" });
  });

  it("fails with the server's reasons", async () => {
    await using server = await FakeServer.start();
    const client = new Client(server.endpoint);
    const refuse = async (error: object, expected: typeof PalisadeError | Function) => {
      const acquiring = client.lock("nightly");
      const peer = await server.peer();
      await peer.expect("acquire");
      peer.send({ error });
      await assert.rejects(acquiring, expected as typeof PalisadeError);
      await peer.ended();
    };
    await refuse({ error: "held", message: "held", holder: { owner: "x", token: 1 }, queue: 0 }, Held);
    await refuse({ error: "timeout", message: "over" }, Timeout);
    await refuse({ error: "limit", message: "too many" }, Refused);
    server.refuse = { head: "401 Unauthorized", body: { error: "unauthenticated", message: "no token" } };
    await assert.rejects(client.lock("nightly"), { name: "Refused", code: "unauthenticated" });
  });

  it("waits its time and not longer", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint).lock("nightly", { waitMs: 400, ttlMs: 3_000 });
    const peer = await server.peer();
    await peer.expect("acquire");
    peer.send({ waiting: { session: SESSION, ttl_ms: 3_000 } });
    await sleep(300);
    assert.equal(await isSettled(acquiring), false);
    peer.send({ error: { error: "timeout", message: "the wait is over" } });
    await assert.rejects(acquiring, Timeout);
  });

  it("uses the endpoint that works", async () => {
    await using server = await FakeServer.start();
    await using frozen = await FakeServer.start();
    frozen.refuse = "silence";
    const gone = await FakeServer.start();
    const closed = gone.endpoint;
    await gone[Symbol.asyncDispose]();
    const acquiring = new Client(`${closed},${frozen.endpoint},${server.endpoint}`, { reachMs: 20_000 }).lock(
      "nightly",
    );
    const peer = await server.peer();
    await peer.grant();
    await release(await acquiring, peer);
    await assert.rejects(new Client(closed, { reachMs: 1_000 }).lock("nightly"), (error: Error) => {
      assert.ok(error instanceof Unreachable);
      assert.match(error.message, /ECONNREFUSED/);
      return true;
    });
    await assert.rejects(new Client(frozen.endpoint, { reachMs: 300 }).lock("nightly"), Unreachable);
  });

  it("gives up on a server that sends garbage, and goes to the next", async () => {
    for (const garbage of ["{", Buffer.from("{}"), '{"granted":{}}', "x".repeat(300_000)]) {
      await using liar = await FakeServer.start();
      await using server = await FakeServer.start();
      const acquiring = new Client([liar.endpoint, server.endpoint]).lock("nightly");
      const lying = await liar.peer();
      await lying.expect("acquire");
      lying.send(garbage);
      const peer = await server.peer();
      await peer.grant();
      await release(await acquiring, peer);
    }
  });

  it("understands an answer that is not Palisade's", async () => {
    await using server = await FakeServer.start();
    server.refuse = { head: "502 Bad Gateway", body: {} };
    await assert.rejects(new Client(server.endpoint, { reachMs: 1_000 }).lock("nightly"), /HTTP status 502/);
  });

  it("gives up a wait when its signal is aborted, and leaves the queue", async () => {
    await using server = await FakeServer.start();
    const controller = new AbortController();
    const acquiring = new Client(server.endpoint).lock("nightly", { waitMs: 60_000, signal: controller.signal });
    const peer = await server.peer();
    await peer.expect("acquire");
    peer.send({ waiting: { session: SESSION, ttl_ms: 30_000 } });
    const reason = new Error("the user left");
    controller.abort(reason);
    await assert.rejects(acquiring, reason);
    await peer.expect("release");
    peer.send({ released: {} });
    await peer.ended();
    await assert.rejects(new Client(server.endpoint).lock("nightly", { signal: controller.signal }), reason);
    assert.equal(server.requests.length, 1);
  });

  it("keeps the lock when the signal of the wait is aborted after the grant", async () => {
    await using server = await FakeServer.start();
    const controller = new AbortController();
    const acquiring = new Client(server.endpoint).lock("nightly", { signal: controller.signal });
    const peer = await server.peer();
    await peer.grant();
    const lock = await acquiring;
    controller.abort();
    assert.equal(lock.isValid, true);
    await release(lock, peer);
  });

  it("replaces the value of the grant", async () => {
    await using server = await FakeServer.start();
    const acquiring = new Client(server.endpoint).lock("main", { value: "10.0.0.7:8080" });
    const peer = await server.peer();
    assert.equal((await peer.grant()).value, "10.0.0.7:8080");
    const lock = await acquiring;
    const replaced = lock.setValue("10.0.0.8:8080");
    assert.deepEqual(await peer.expect("value"), { n: 1, value: "10.0.0.8:8080" });
    peer.send({ proclaimed: { n: 1 } });
    await replaced;
    const refused = lock.setValue("x");
    await peer.expect("value");
    peer.send({ error: { n: 2, error: "invalid", message: "too long" } });
    await assert.rejects(refused, { code: "invalid" });
    await release(lock, peer);
  });

  it("releases at the end of an `await using` block", async () => {
    await using server = await FakeServer.start();
    const block = (async () => {
      await using lock = await new Client(server.endpoint).lock("nightly");
      return lock.token;
    })();
    const peer = await server.peer();
    await peer.grant();
    await peer.expect("release");
    peer.send({ released: {} });
    assert.equal(await block, 17);
  });

  it("refuses options with which it cannot compute", async () => {
    const client = new Client("127.0.0.1:1");
    for (const options of [{ ttlMs: 0 }, { ttlMs: 1.5 }, { ttlMs: Number.NaN }, { waitMs: -1 }, { waitMs: Infinity }]) {
      await assert.rejects(client.lock("nightly", options), RangeError);
    }
    assert.throws(() => new Client("nowhere"), TypeError);
    assert.throws(() => new Client("http://a:1", { tls: { token: "x" } }), /named without TLS/);
    assert.throws(() => new Client("a:1", { tls: { cert: "x" } }), /belong together/);
    assert.throws(() => new Client("a:1", { tls: { token: "secret\n" } }), /bearer token/);
    assert.throws(() => new Client("a:1", { tls: { ca: "ca.pem" } }), /has no certificate/);
  });
});

async function release(
  lock: { release(): Promise<void> },
  peer: { expect(kind: string): Promise<unknown>; send(frame: object): void },
): Promise<void> {
  const released = lock.release();
  await peer.expect("release");
  peer.send({ released: {} });
  await released;
}
