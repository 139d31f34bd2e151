// Requests over HTTP at servers that answer, refuse, or lose their answer.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import {
  Client,
  NoRecord,
  OtherVersion,
  PalisadeError,
  type RecordChange,
  Refused,
  StaleToken,
  StoreFull,
  UnknownOutcome,
  Unreachable,
} from "palisade-lock";
import { browserPlatform } from "../src/browser-platform.js";
import { CoreClient, type CoreOptions } from "../src/core-client.js";
import { nodePlatform } from "../src/node-platform.js";
import { FakeServer, block, sleep } from "./fake-server.js";

interface Asked {
  readonly method: string | undefined;
  readonly url: string | undefined;
  readonly token: string | string[] | undefined;
  readonly body: string;
}

type Answer = (response: ServerResponse, request: IncomingMessage) => void;

/** A server that gives these answers in turn, the last one again and again, and notes what it was asked. */
async function answering(...answers: Answer[]): Promise<FakeServer & { asked: Asked[] }> {
  const asked: Asked[] = [];
  const server = await FakeServer.start(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    asked.push({ method: request.method, url: request.url, token: request.headers["x-fence-token"], body });
    (answers.length > 1 ? answers.shift() : answers[0])?.(response, request);
  });
  return Object.assign(server, { asked });
}

const say =
  (status: number, body: object | string, headers: Record<string, string> = {}): Answer =>
  (response) =>
    void response.writeHead(status, headers).end(typeof body === "string" ? body : JSON.stringify(body));
const refuse = (status: number, error: string, fields: object = {}) =>
  say(status, { error, message: "why", ...fields });
const done = (version: number) => say(200, { version });
/** The request has been read, and its answer is lost. */
const lose: Answer = (_response, request) => void request.socket.destroy();
const silence: Answer = () => undefined;

const LOCK = { key: "nightly", token: 17 };

/** A client as in a page, with the connections of Node. */
class Page extends CoreClient {
  constructor(endpoints: string | readonly string[], options: CoreOptions = {}) {
    super(endpoints, options, { ...nodePlatform(undefined), usesFetch: browserPlatform(undefined).usesFetch });
  }
}

describe("a record", () => {
  it("is written, read and deleted", async () => {
    await using server = await answering(done(4), done(5), done(6), done(7));
    const { records } = new Client(server.endpoint);
    assert.equal(await records.put("a b/ü?&#", "é"), 4);
    assert.equal(await records.append("k", new Uint8Array([0, 65]), { lock: LOCK }), 5);
    assert.equal(await records.delete("k", { lock: LOCK, ifVersion: 5 }), 6);
    const changes: RecordChange[] = [
      { put: { key: "k", value: "done" } },
      { append: { key: "log", value: new Uint8Array([255, 0]) } },
      { delete: { key: "draft" } },
    ];
    assert.equal(await records.transact(changes, [{ held: LOCK }, { version: { key: "k", version: 0 } }]), 7);
    assert.deepEqual(server.asked.slice(0, 3), [
      { method: "PUT", url: "/v1/kv/a%20b%2F%C3%BC%3F%26%23", token: undefined, body: "é" },
      { method: "POST", url: "/v1/kv/k/append?lock=nightly", token: "17", body: "\0A" },
      { method: "DELETE", url: "/v1/kv/k?lock=nightly&if_version=5", token: "17", body: "" },
    ]);
    const [, , , transaction] = server.asked;
    assert.deepEqual([transaction?.method, transaction?.url], ["POST", "/v1/kv"]);
    assert.deepEqual(JSON.parse(transaction?.body ?? ""), {
      conditions: [{ held: { lock: "nightly", token: 17 } }, { version: { key: "k", version: 0 } }],
      changes: [
        { put: { key: "k", value: "done" } },
        { append: { key: "log", value: { base64: "/wA=" } } },
        { delete: { key: "draft" } },
      ],
    });
  });

  it("is read with its version, its fence and its age", async () => {
    const fenced = say(200, "é", { "X-Version": "9", "X-Max-Fence": "17" });
    await using server = await answering(fenced, say(200, "", { "X-Version": "10", "X-Age-Ms": "3" }));
    const { records } = new Client(server.endpoint);
    const record = await records.get("k");
    assert.deepEqual([record.key, record.text(), record.version, record.fence], ["k", "é", 9, 17]);
    assert.deepEqual([...record.value], [0xc3, 0xa9]);
    assert.equal(record.ageMs, undefined);
    const stale = await records.get("k", { stale: true });
    assert.deepEqual([stale.text(), stale.version, stale.fence, stale.ageMs], ["", 10, undefined, 3]);
    assert.deepEqual(
      server.asked.map(({ url }) => url),
      ["/v1/kv/k", "/v1/kv/k?consistency=stale"],
    );
  });

  it("is written under a lock of this client, in a write and in a transaction", async () => {
    await using server = await answering(done(4));
    const client = new Client(server.endpoint);
    const acquiring = client.lock("nightly");
    await (await server.peer()).grant(18);
    const lock = await acquiring;
    await client.records.put("k", "v", { lock });
    await client.records.transact([{ delete: { key: "k" } }], [{ held: lock }]);
    const [put, transaction] = server.asked;
    assert.deepEqual([put?.url, put?.token], ["/v1/kv/k?lock=nightly", "18"]);
    assert.deepEqual(JSON.parse(transaction?.body ?? "").conditions, [{ held: { lock: "nightly", token: 18 } }]);
  });

  it("is refused with the server's reasons", async () => {
    await using server = await answering(
      refuse(409, "stale fencing token", { seen: 18, got: 17 }),
      refuse(409, "stale fencing token", { seen: 18 }),
      refuse(409, "other_version", { version: 0 }),
      refuse(507, "store_full"),
      refuse(404, "no_record"),
      refuse(403, "denied"),
    );
    const { records } = new Client(server.endpoint);
    const stale = (got: number | undefined) => (error: unknown) =>
      error instanceof StaleToken && error.code === "stale fencing token" && error.seen === 18 && error.got === got;
    await assert.rejects(records.put("k", "v", { lock: LOCK }), stale(17));
    await assert.rejects(records.put("k", "v"), stale(undefined));
    const other = (error: unknown) => error instanceof OtherVersion && error.version === 0;
    await assert.rejects(records.put("k", "v", { ifVersion: 3 }), other);
    await assert.rejects(records.put("k", "v"), StoreFull);
    await assert.rejects(records.get("k"), NoRecord);
    const denied = (error: unknown) => error instanceof Refused && error.code === "denied";
    await assert.rejects(records.delete("k"), denied);
    assert.equal(server.asked.length, 6);
  });

  it("is not sent if it is too long, or its condition is none", async () => {
    await using server = await answering(done(1));
    const { records } = new Client(server.endpoint);
    await assert.rejects(records.put("k", "x".repeat(65_537)), { code: "too_large" });
    const long = { put: { key: "k", value: "x".repeat(256 * 1024) } };
    await assert.rejects(records.transact([long]), { name: "Refused", code: "too_large" });
    for (const ifVersion of [-1, 1.5, NaN, 2 ** 53]) {
      await assert.rejects(records.put("k", "v", { ifVersion }), RangeError);
      const condition = { version: { key: "k", version: ifVersion } };
      await assert.rejects(records.transact([{ delete: { key: "k" } }], [condition]), RangeError);
    }
    assert.equal(server.asked.length, 0);
  });

  it("has any key in Node; in a browser it cannot have a key that URLs do not have", async () => {
    await using server = await answering(done(4));
    const node = new Client(server.endpoint);
    await node.records.append("..", "v");
    assert.equal(server.asked[0]?.url, "/v1/kv/%2E%2E/append");
    const page = new Page(server.endpoint);
    for (const key of [".", ".."]) {
      await assert.rejects(page.records.put(key, "v"), TypeError);
      await assert.rejects(page.records.get(key), TypeError);
      await assert.rejects(page.show(key), TypeError);
      await page.records.transact([{ put: { key, value: "v" } }]);
    }
    assert.deepEqual(
      server.asked.slice(1).map(({ url }) => url),
      ["/v1/kv", "/v1/kv"],
    );
  });
});

describe("a write whose answer is lost", () => {
  const unguarded: [string, (client: Client) => Promise<number>][] = [
    ["a put", ({ records }) => records.put("k", "v")],
    ["a put under a lock", ({ records }) => records.put("k", "v", { lock: LOCK })],
    ["a put of a new record", ({ records }) => records.put("k", "v", { ifVersion: 0 })],
    ["an append", ({ records }) => records.append("k", "v", { lock: LOCK })],
    ["a deletion", ({ records }) => records.delete("k")],
    [
      "a transaction with the version of another record",
      ({ records }) =>
        records.transact([{ append: { key: "k", value: "v" } }], [{ version: { key: "other", version: 3 } }]),
    ],
  ];
  for (const [name, write] of unguarded) {
    it(`is not sent again: ${name}`, async () => {
      for (const lost of [lose, refuse(503, "leadership_lost"), refuse(503, "shutting_down"), say(502, "<html>")]) {
        await using server = await answering(lost);
        await using other = await answering(done(4));
        await assert.rejects(write(new Client([server.endpoint, other.endpoint])), UnknownOutcome);
        assert.deepEqual([server.asked.length, other.asked.length], [1, 0]);
      }
    });
  }

  const guarded: [string, (client: Client) => Promise<number>][] = [
    ["a put", ({ records }) => records.put("k", "v", { ifVersion: 3 })],
    ["an append under a lock", ({ records }) => records.append("k", "v", { ifVersion: 3, lock: LOCK })],
    ["a deletion", ({ records }) => records.delete("k", { ifVersion: 3 })],
    [
      "a transaction",
      ({ records }) =>
        records.transact([{ append: { key: "k", value: "v" } }], [{ version: { key: "k", version: 3 } }]),
    ],
  ];
  for (const [name, write] of guarded) {
    it(`is sent again if it names the version that it replaces: ${name}`, async () => {
      for (const lost of [lose, refuse(503, "leadership_lost"), refuse(503, "shutting_down"), say(502, "<html>")]) {
        await using server = await answering(lost);
        await using other = await answering(done(4));
        assert.equal(await write(new Client([server.endpoint, other.endpoint])), 4);
        assert.deepEqual(server.asked, other.asked);
      }
    });
  }

  it("is never reported as refused when it is sent again", async () => {
    for (const [refusal, type] of [
      [refuse(409, "other_version", { version: 4 }), OtherVersion],
      [refuse(409, "stale fencing token", { seen: 18, got: 17 }), StaleToken],
      [refuse(403, "denied"), Refused],
    ] as const) {
      await using server = await answering(lose);
      await using other = await answering(refusal);
      const { records } = new Client([server.endpoint, other.endpoint]);
      await assert.rejects(records.put("k", "v", { ifVersion: 3, lock: LOCK }), (error: unknown) => {
        assert.ok(error instanceof UnknownOutcome && error.cause instanceof type, String(error));
        assert.equal(error.code, "unknown");
        return true;
      });
    }
  });

  it("has an unknown outcome when no server answers any more", async () => {
    await using server = await answering(lose);
    const { records } = new Client(server.endpoint, { reachMs: 500 });
    await assert.rejects(records.put("k", "v", { ifVersion: 3 }), UnknownOutcome);
  });

  it("has an unknown outcome if the answer is malformed", async () => {
    for (const body of ["{", "[]", "{}", '{"version":"4"}', '{"version":-1}']) {
      await using server = await answering(say(200, body));
      await assert.rejects(new Client(server.endpoint).records.append("k", "v"), UnknownOutcome);
    }
  });

  it("is waited for as long as the client has time", async () => {
    await using server = await answering((response) => void setTimeout(() => done(4)(response, response.req), 2_600));
    await using other = await answering(done(5));
    const client = new Client([server.endpoint, other.endpoint], { reachMs: 4_000 });
    assert.equal(await client.records.append("k", "v"), 4);
  });

  it("is not given up because the process was busy", async () => {
    await using server = await answering(done(4));
    const writing = new Client(server.endpoint, { reachMs: 0 }).records.append("k", "v");
    while (server.asked.length === 0) await new Promise((resolve) => setImmediate(resolve));
    block(2_300);
    assert.equal(await writing, 4);
  });

  it("may have been done if its signal is aborted", async () => {
    await using server = await answering(silence);
    const controller = new AbortController();
    const writing = new Client(server.endpoint).records.put("k", "v", { signal: controller.signal });
    while (server.asked.length === 0) await sleep(5);
    const reason = new Error("the user left");
    controller.abort(reason);
    await assert.rejects(writing, reason);
    await assert.rejects(new Client(server.endpoint).records.get("k", { signal: controller.signal }), reason);
    assert.equal(server.asked.length, 1);
  });
});

describe("a write that no server has executed", () => {
  it("is sent to the next server", async () => {
    const gone = await answering();
    const closed = gone.endpoint;
    await gone[Symbol.asyncDispose]();
    for (const passing of [refuse(503, "no_leader"), refuse(503, "overloaded"), refuse(404, "not_found")]) {
      await using server = await answering(passing);
      await using other = await answering(done(4));
      const { records } = new Client([closed, server.endpoint, other.endpoint]);
      assert.equal(await records.append("k", "v"), 4);
      assert.equal(server.asked.length, 1);
      // The next request begins where this one was answered.
      await records.append("k", "w");
      assert.equal(other.asked.length, 2);
    }
  });

  it("is certainly not done if none can be reached", async () => {
    const gone = await answering();
    const closed = gone.endpoint;
    await gone[Symbol.asyncDispose]();
    const { records } = new Client(closed, { reachMs: 300 });
    await assert.rejects(records.append("k", "v"), (error: unknown) => {
      return error instanceof Unreachable && /ECONNREFUSED/.test(error.message);
    });
    await using server = await answering(refuse(503, "no_leader"));
    const leaderless = new Client(server.endpoint, { reachMs: 300 });
    await assert.rejects(leaderless.records.append("k", "v"), Unreachable);
  });

  it("follows a redirect to the leader", async () => {
    await using leader = await answering(done(4));
    const location = { Location: `http://${leader.endpoint}/v1/kv/k` };
    await using follower = await answering(say(307, { error: "not_leader", message: "" }, location));
    assert.equal(await new Client(follower.endpoint).records.append("k", "v"), 4);
    assert.deepEqual(follower.asked, leader.asked);
  });
});

describe("a write", () => {
  it("of a browser has an unknown outcome whenever it is refused or reaches no leader", async () => {
    await using server = await answering(
      refuse(409, "other_version", { version: 4 }),
      refuse(409, "stale fencing token", { seen: 18, got: 17 }),
      refuse(404, "no_record"),
      refuse(503, "no_leader"),
    );
    const { records } = new Page(server.endpoint, { reachMs: 300 });
    const because = (type: new (...fields: never[]) => Error) => (error: unknown) =>
      error instanceof UnknownOutcome && error.cause instanceof type;
    await assert.rejects(records.put("k", "v", { ifVersion: 3 }), because(OtherVersion));
    await assert.rejects(records.transact([{ delete: { key: "k" } }], [{ held: LOCK }]), because(StaleToken));
    await assert.rejects(records.get("k"), NoRecord);
    await assert.rejects(records.put("k", "v"), UnknownOutcome);
  });

  it("of a browser is no append that could be done twice", async () => {
    await using server = await answering(done(4));
    const { records } = new Page(server.endpoint);
    const append = { append: { key: "k", value: "v" } };
    await assert.rejects(records.append("k", "v", { lock: LOCK }), TypeError);
    await assert.rejects(records.append("k", "v", { ifVersion: 0 }), TypeError);
    await assert.rejects(records.transact([append], [{ version: { key: "other", version: 3 } }]), TypeError);
    assert.equal(server.asked.length, 0);
    assert.equal(await records.append("k", "v", { ifVersion: 3 }), 4);
    assert.equal(await records.transact([append], [{ version: { key: "k", version: 3 } }]), 4);
  });

  it("of the example is not taken for done because the next holder wrote the same", async () => {
    const missing = refuse(404, "no_record");
    const next = say(200, "page 1", { "X-Version": "5", "X-Max-Fence": "18" });
    const stale = refuse(409, "stale fencing token", { seen: 18, got: 17 });
    await using server = await answering(missing, lose, next, stale);
    const example = fileURLToPath(new URL("../examples/nightly.js", import.meta.url));
    const child = spawn(process.execPath, [example], {
      env: { ...process.env, PALISADE_ENDPOINTS: server.endpoint },
      stdio: ["ignore", "pipe", "inherit"],
    });
    try {
      let output = "";
      child.stdout.on("data", (data) => (output += data));
      const peer = await server.peer();
      await peer.grant(17, 60_000);
      await peer.expect("release");
      peer.send({ released: {} });
      await once(child, "close");
      assert.match(output, /page 1 is refused/);
      assert.equal(server.asked[3]?.url, "/v1/kv/nightly?lock=nightly&if_version=5");
    } finally {
      child.kill("SIGKILL");
    }
  });
});

describe("a read", () => {
  it("of what any server knows begins at the one that answered the last", async () => {
    await using server = await answering(lose);
    await using other = await answering(say(200, "v", { "X-Version": "4" }));
    const { records } = new Client([server.endpoint, other.endpoint]);
    for (let reads = 0; reads < 3; reads += 1) await records.get("k", { stale: true });
    assert.deepEqual([server.asked.length, other.asked.length], [1, 3]);
    // Any server is no leader.
    await records.get("k");
    assert.equal(server.asked.length, 2);
  });

  it("is sent again when its answer is lost, late or malformed", async () => {
    const numbers = ["", "0", "1e3", "9007199254740993"].map((version) => say(200, "v", { "X-Version": version }));
    const malformed = [say(502, "<html>"), say(200, "no version"), ...numbers];
    for (const bad of [lose, silence, refuse(503, "leadership_lost"), ...malformed]) {
      await using server = await answering(bad);
      await using other = await answering(say(200, "v", { "X-Version": "4" }));
      const record = await new Client([server.endpoint, other.endpoint]).records.get("k");
      assert.deepEqual([record.text(), server.asked.length, other.asked.length], ["v", 1, 1]);
    }
  });

  const waiter = { owner: "w", session: 5, mode: "shared", permits: null, of: null, keys: [] };
  const grant = { token: 17, expires_in_ms: 2_900, holds: 1, value: "10.0.0.7" };
  const holder = { ...waiter, ...grant, keys: ["a", "b"], later: 1 };
  const lock = { key: "a", held: true, holder, holders: [holder], queue: [{ ...waiter, permits: 2, of: 3 }] };
  const seen = {
    key: "a",
    held: true,
    holders: [
      {
        owner: "w",
        session: 5,
        mode: "shared",
        keys: ["a", "b"],
        token: 17,
        expiresInMs: 2_900,
        holds: 1,
        value: "10.0.0.7",
      },
    ],
    queue: [{ owner: "w", session: 5, mode: "shared", permits: 2, of: 3, keys: [] }],
  };

  it("shows who holds a lock, and who waits", async () => {
    await using server = await answering(say(200, lock), say(200, { ...lock, age_ms: 4 }));
    const client = new Client(server.endpoint);
    assert.deepEqual(await client.show("a/b"), seen);
    assert.deepEqual(await client.show("a", { stale: true }), { ...seen, ageMs: 4 });
    assert.deepEqual(
      server.asked.map(({ url }) => url),
      ["/v1/locks/a%2Fb", "/v1/locks/a?consistency=stale"],
    );
  });

  it("lists locks in pages", async () => {
    await using server = await answering(
      say(200, { locks: [lock], next_after: "a" }),
      say(200, { locks: [], next_after: null, age_ms: null }),
    );
    const client = new Client(server.endpoint);
    assert.deepEqual(await client.list("jobs/", { limit: 1 }), { locks: [seen], nextAfter: "a" });
    assert.deepEqual(await client.list("jobs/", { after: "a", stale: true }), { locks: [] });
    assert.deepEqual(
      server.asked.map(({ url }) => url),
      ["/v1/locks?prefix=jobs%2F&limit=1", "/v1/locks?prefix=jobs%2F&after=a&consistency=stale"],
    );
  });

  it("does not believe a malformed answer", async () => {
    const wrong = [{ ...lock, holders: {} }, { ...lock, queue: [{}] }, { ...lock, held: 1 }, [lock], { key: "a" }];
    for (const body of wrong) {
      await using server = await answering(say(200, body));
      const asked = new Client(server.endpoint, { reachMs: 0 }).show("a");
      await assert.rejects(asked, (error: unknown) => {
        return error instanceof PalisadeError && error.code === "unreachable" && /malformed/.test(error.message);
      });
    }
  });
});
