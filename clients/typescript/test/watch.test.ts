// Watches at servers that stop, fall silent, or send what is not of a watch.

import assert from "node:assert/strict";
import type { ServerResponse } from "node:http";
import { describe, it } from "node:test";
import { type Change, Client, Compacted, PalisadeError, Refused, type WatchEvent } from "palisade-lock";
import { FakeServer, sleep } from "./fake-server.js";

type Answer = (response: ServerResponse) => void;

/** A server of watches that answers in turn, the last answer again and again, and notes what it was asked. */
async function watched(...answers: Answer[]): Promise<FakeServer & { asked: string[] }> {
  const asked: string[] = [];
  const server = await FakeServer.start((request, response) => {
    asked.push(request.url ?? "");
    (answers.length > 1 ? answers.shift() : answers[0])?.(response);
  });
  return Object.assign(server, { asked });
}

function begin(response: ServerResponse): void {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.flushHeaders();
}

/** Sends these blocks, and ends the connection or leaves it open. */
const blocks =
  (texts: readonly string[], end: "cut" | "end" | "open" = "open"): Answer =>
  (response) => {
    begin(response);
    response.write(texts.join(""), () => {
      if (end === "cut") response.socket?.resetAndDestroy();
      else if (end === "end") response.end();
    });
  };
const refuse =
  (status: number, error: string): Answer =>
  (response) =>
    void response.writeHead(status).end(JSON.stringify({ error, message: "why" }));

const block = (kind: string, data: object, id?: string) =>
  `${id === undefined ? "" : `id: ${id}\n`}event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`;
const put = (id: string, version: number, key = "k") =>
  block("put", { event: "put", id, revision: Number.parseInt(id, 10), key, version }, id);
const part = (revision: number, begins: boolean, complete: boolean) => {
  const record = { key: "k", version: 3, fence: null, bytes: 2 };
  const data = { revision, begins, locks: [], records: [record], complete };
  return block("listing", data, complete ? String(revision) : undefined);
};
const end = (error: string) => block("end", { error, message: "why" });

/** The first `n` events. */
async function first(n: number, watch: AsyncIterable<WatchEvent>): Promise<WatchEvent[]> {
  const events: WatchEvent[] = [];
  for await (const event of watch) if (events.push(event) === n) break;
  return events;
}

const ids = (events: readonly WatchEvent[]) => events.map(({ id }) => id);

describe("a watch", () => {
  it("tells the present state, and then each event", async () => {
    const claim = { key: "k", session: 5, owner: "w", mode: "exclusive" };
    const grant = { ...claim, event: "granted", id: "47", revision: 47, token: 18, value: "v", later: true };
    const queued = { ...claim, event: "queued", id: "44", revision: 44, keys: ["k", "l"], ahead: 2 };
    const lost = { event: "released", id: "47.1", revision: 47, key: "k", session: 3, token: 17, because: "request" };
    await using server = await watched(
      blocks([
        part(41, true, true),
        block("queued", queued, "44"),
        ": 45\n\n",
        block("released", lost, "47.1"),
        block("granted", grant, "47"),
        block("later", { revision: 48, key: "k" }, "48"),
        block("put", { event: "put", id: "49", revision: 49, key: "ü", version: 4, fence: 18 }, "49"),
        block("deleted", { event: "deleted", id: "50", revision: 50, key: "ü", version: 5 }, "50"),
        block("expired", { revision: 51, key: "k", session: 5, token: 18 }, "51.1"),
        block("broken", { revision: 52, key: "k", session: 5, token: 18 }, "52.1"),
        block("withdrawn", { revision: 53, key: "k", session: 6, because: "denied" }, "53"),
        block("value", { revision: 54, key: "k", session: 5, token: 18, value: "x" }, "54"),
      ]),
    );
    const events = await first(10, new Client(server.endpoint).watch({ prefix: "a/ b" }));
    const record = { key: "k", version: 3, bytes: 2 };
    const session = { session: 5, owner: "w", mode: "exclusive" };
    assert.deepEqual(events, [
      { kind: "listing", id: "41", revision: 41, begins: true, complete: true, locks: [], records: [record] },
      { kind: "queued", id: "44", revision: 44, key: "k", ...session, keys: ["k", "l"], ahead: 2 },
      { kind: "released", id: "47.1", revision: 47, key: "k", session: 3, token: 17, because: "request" },
      { kind: "granted", id: "47", revision: 47, key: "k", ...session, keys: [], token: 18, value: "v" },
      { kind: "put", id: "49", revision: 49, key: "ü", version: 4, fence: 18 },
      { kind: "deleted", id: "50", revision: 50, key: "ü", version: 5 },
      { kind: "expired", id: "51.1", revision: 51, key: "k", session: 5, token: 18 },
      { kind: "broken", id: "52.1", revision: 52, key: "k", session: 5, token: 18 },
      { kind: "withdrawn", id: "53", revision: 53, key: "k", session: 6, because: "denied" },
      { kind: "value", id: "54", revision: 54, key: "k", session: 5, token: 18, value: "x" },
    ]);
    assert.deepEqual(server.asked, ["/v1/watch?prefix=a%2F%20b"]);
  });

  it("reads events that come in pieces", async () => {
    const bytes = Buffer.from(`${put("7", 1, "ü")}${put("8", 2)}`.replaceAll("\n", "\r\n"));
    await using server = await watched(async (response) => {
      begin(response);
      for (const byte of bytes) {
        response.write(Buffer.of(byte));
        await new Promise((resolve) => setImmediate(resolve));
      }
    });
    const events = await first(2, new Client(server.endpoint).watch({ key: "ü", after: "6.1" }));
    assert.deepEqual(events, [
      { kind: "put", id: "7", revision: 7, key: "ü", version: 1 },
      { kind: "put", id: "8", revision: 8, key: "k", version: 2 },
    ]);
    assert.deepEqual(server.asked, ["/v1/watch?key=%C3%BC&after=6.1"]);
  });

  it("reads a text with the line separators of Unicode", async () => {
    const grant = { revision: 7, key: "k", session: 5, owner: "a\u2028b\u2029c", mode: "exclusive", token: 18 };
    await using server = await watched(blocks([block("granted", grant, "7"), put("8", 1)]));
    const [event] = await first(1, new Client(server.endpoint).watch({ key: "k", after: "6" }));
    assert.deepEqual(event, { kind: "granted", id: "7", keys: [], ...grant });
  });

  it("goes on at another server after the last event, whatever ends it", async () => {
    const half = 'id: 8\nevent: put\ndata: {"rev';
    for (const how of ["cut", "end"] as const) {
      for (const last of ["", end("shutting_down"), end("no_leader"), end("too_slow"), half]) {
        await using server = await watched(blocks([part(6, true, true), put("7.1", 1), last], how));
        await using other = await watched(blocks([put("7", 2), put("9", 3)]));
        const events = await first(4, new Client([server.endpoint, other.endpoint]).watch({ key: "k" }));
        assert.deepEqual(ids(events), ["6", "7.1", "7", "9"]);
        assert.deepEqual([server.asked, other.asked], [["/v1/watch?key=k"], ["/v1/watch?key=k&after=7.1"]]);
      }
    }
  });

  it("begins a listing anew that was not complete", async () => {
    const between = block("put", { event: "put", id: "7", revision: 7, key: "k", version: 4 });
    await using server = await watched(blocks([part(6, true, false), between], "cut"));
    await using other = await watched(blocks([part(8, true, false), part(9, false, true)]));
    const events = await first(4, new Client([server.endpoint, other.endpoint]).watch({ key: "k" }));
    assert.deepEqual(ids(events), [undefined, undefined, undefined, "9"]);
    assert.deepEqual(other.asked, ["/v1/watch?key=k"]);
  });

  it("goes to the next server if one does not serve it", async () => {
    const gone = await watched();
    const closed = gone.endpoint;
    await gone[Symbol.asyncDispose]();
    for (const passing of [refuse(503, "no_leader"), refuse(503, "overloaded"), refuse(401, "unauthenticated")]) {
      await using server = await watched(passing);
      await using other = await watched(blocks([put("9", 3)]));
      const events = await first(1, new Client([closed, server.endpoint, other.endpoint]).watch({ prefix: "" }));
      assert.deepEqual([ids(events), server.asked.length], [["9"], 1]);
    }
  });

  it("says which past is not there any more", async () => {
    const compacted = `id:\n${block("compacted", { floor: 120, message: "gone" })}`;
    await using server = await watched(blocks([compacted, part(130, true, true)]));
    await assert.rejects(first(1, new Client(server.endpoint).watch({ key: "k", after: "7" })), (error: unknown) => {
      assert.ok(error instanceof Compacted && error instanceof PalisadeError);
      assert.deepEqual([error.code, error.floor], ["compacted", 120]);
      return true;
    });
    assert.equal(server.asked.length, 1);
  });

  it("ends with a refusal", async () => {
    const denied = (error: unknown) => error instanceof Refused && error.code === "denied";
    await using server = await watched(refuse(403, "denied"), blocks([put("7", 1), end("denied")]));
    const client = new Client(server.endpoint);
    await assert.rejects(first(1, client.watch({ key: "k" })), denied);
    await assert.rejects(first(2, client.watch({ key: "k" })), denied);
    await using strict = await watched(refuse(401, "unauthenticated"));
    const unknown = first(1, new Client(strict.endpoint).watch({ key: "k" }));
    await assert.rejects(unknown, { name: "Refused", code: "unauthenticated" });
    assert.throws(() => client.watch({} as { key: string }), TypeError);
  });

  const refusals = [
    [429, "limit"],
    [401, "unauthenticated"],
    [403, "denied"],
  ] as const;

  it("goes on while one server serves it, whatever another one refuses", async () => {
    for (const [status, code] of refusals) {
      await using server = await watched(refuse(status, code), blocks([put("8", 2)]));
      await using other = await watched(blocks([put("7", 1), end(code)]));
      const client = new Client([server.endpoint, other.endpoint]);
      const events = await first(2, client.watch({ key: "k", after: "6" }));
      // What was refused before an event counts no longer.
      assert.deepEqual([ids(events), server.asked.length, other.asked.length], [["7", "8"], 2, 1]);
    }
  });

  it("ends when all servers refuse it one after the other", async () => {
    for (const [status, code] of refusals) {
      await using server = await watched(refuse(status, code));
      await using other = await watched(blocks([end(code)]));
      const watch = new Client([server.endpoint, other.endpoint]).watch({ key: "k" });
      await assert.rejects(first(1, watch), { name: "Refused", code });
      assert.deepEqual([server.asked.length, other.asked.length], [1, 1]);
    }
  });

  it("ends with a refusal in time while the other servers cannot be reached", async () => {
    const gone = await watched();
    const closed = gone.endpoint;
    await gone[Symbol.asyncDispose]();
    await using server = await watched(refuse(429, "limit"));
    const watch = new Client([closed, server.endpoint], { reachMs: 300 }).watch({ key: "k" });
    await assert.rejects(first(1, watch), { name: "Refused", code: "limit" });
    assert.ok(server.asked.length > 1);
  });

  it("leaves a server that sends what is not of a watch, and resumes before it", async () => {
    const wrong = [
      "data: {\n\n",
      block("put", { revision: 8, key: "k" }, "8"),
      block("put", { revision: "8", key: "k", version: 1 }, "8"),
      block("listing", { revision: 8, begins: true, complete: true, locks: [{}], records: [] }, "8"),
      block("end", {}),
      block("compacted", { floor: null }),
    ];
    for (const text of wrong) {
      await using liar = await watched(blocks([put("7", 1), text]));
      await using other = await watched(blocks([put("8", 2)]));
      const events = await first(2, new Client([liar.endpoint, other.endpoint]).watch({ key: "k", after: "6" }));
      assert.deepEqual([ids(events), other.asked], [["7", "8"], ["/v1/watch?key=k&after=7"]]);
    }
    await using liar = await watched(blocks([wrong[0] ?? ""]));
    await assert.rejects(first(1, new Client(liar.endpoint).watch({ key: "k" })), { code: "malformed" });
  });

  it("leaves a server that has been silent for 30 s", async (test) => {
    await using server = await watched(blocks([put("7", 1)]));
    await using other = await watched(blocks([put("8", 2)]));
    test.mock.timers.enable({ apis: ["setTimeout"] });
    const watch = new Client([server.endpoint, other.endpoint]).watch({ key: "k", after: "6" });
    assert.equal((await watch.next()).value?.id, "7");
    const next = watch.next();
    const soon = () => new Promise((resolve) => setImmediate(resolve));
    await soon();
    test.mock.timers.tick(29_000);
    for (let turns = 0; turns < 20; turns += 1) await soon();
    assert.equal(other.asked.length, 0);
    test.mock.timers.tick(1_000);
    while (other.asked.length === 0) {
      await soon();
      // The pause before the next server.
      test.mock.timers.tick(10);
    }
    assert.equal((await next).value?.id, "8");
    await watch.return();
  });

  it("ends its connection with the loop", async () => {
    let closed = 0;
    await using server = await watched((response) => {
      response.on("close", () => (closed += 1));
      blocks([put("7", 1), put("8", 2)])(response);
    });
    const client = new Client(server.endpoint);
    await first(1, client.watch({ key: "k", after: "6" }));
    while (closed === 0) await sleep(5);
    const controller = new AbortController();
    const { signal } = controller;
    const seen: Change[] = [];
    const reason = new Error("the user left");
    const watching = (async () => {
      for await (const event of client.watch({ key: "k", after: "6", signal })) {
        if (event.kind === "put" && seen.push(event) === 2) setTimeout(() => controller.abort(reason), 20);
      }
    })();
    await assert.rejects(watching, reason);
    while (closed === 1) await sleep(5);
    assert.deepEqual(ids(seen), ["7", "8"]);
    await assert.rejects(first(1, client.watch({ key: "k", signal })), reason);
    assert.equal(server.asked.length, 2);
  });
});
