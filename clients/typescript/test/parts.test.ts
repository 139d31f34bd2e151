// The clock, the list of endpoints, the package and its processes.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { browserPlatform } from "../src/browser-platform.js";
import { SuspendClock } from "../src/clock.js";
import { parseEndpoints, redirectTarget } from "../src/endpoints.js";
import { nodePlatform } from "../src/node-platform.js";
import type { SocketHandlers } from "../src/platform.js";
import { Route } from "../src/route.js";
import { FakeServer, sleep } from "./fake-server.js";

describe("the clock", () => {
  const machine = { monotonic: 5_000, boot: 100_000 };
  const uptime = () => Math.floor(machine.boot / 10) * 10;
  const pass = (ms: number, suspended = 0) => {
    machine.monotonic += ms;
    machine.boot += ms + suspended;
  };

  it("is the monotonic clock while the machine does not sleep", () => {
    const clock = new SuspendClock(() => machine.monotonic, uptime);
    assert.equal(clock.outlivesTimers, true);
    const start = clock.now();
    for (let step = 0; step < 1_000; step++) {
      pass(3.7);
      assert.equal(clock.now() - start, machine.monotonic - 5_000);
    }
  });

  it("counts a suspend, and never less than it lasted", () => {
    const clock = new SuspendClock(() => machine.monotonic, uptime);
    const start = clock.now();
    pass(1_003, 60_000);
    const elapsed = clock.now() - start;
    assert.ok(elapsed >= 61_003 && elapsed < 61_053, `${elapsed}`);
    pass(500);
    assert.ok(clock.now() - start - elapsed >= 500);
  });

  it("does not take a pause of the process between two readings for a suspend", () => {
    let pauses = 0;
    const interrupted = () => {
      if (pauses-- > 0) pass(1_000);
      return uptime();
    };
    const clock = new SuspendClock(() => machine.monotonic, interrupted);
    const start = clock.now();
    pauses = 3;
    const before = machine.monotonic;
    assert.equal(clock.now() - start, machine.monotonic - before);
  });

  it("never goes back", () => {
    let monotonic = 10;
    const clock = new SuspendClock(
      () => monotonic,
      () => undefined,
    );
    assert.equal(clock.outlivesTimers, false);
    assert.equal(clock.now(), 10);
    monotonic = 9;
    assert.equal(clock.now(), 10);
  });

  it("follows `/proc/uptime` on Linux", { skip: process.platform !== "linux" }, async () => {
    const { clock } = nodePlatform(undefined);
    assert.equal(clock.outlivesTimers, true);
    const [before, start] = [clock.now(), performance.now()];
    await sleep(100);
    assert.ok(Math.abs(clock.now() - before - (performance.now() - start)) < 50);
  });
});

describe("the platform", () => {
  it("of Node sees the pings of a server, and knows how often they come", async () => {
    await using server = await FakeServer.start();
    const platform = nodePlatform(undefined);
    assert.equal(platform.silenceMs, 30_000);
    const pinged = new Promise<void>((resolve, reject) => {
      const socket = platform.connect(
        { host: server.endpoint, secure: false },
        {
          opened: () => undefined,
          received: reject,
          refused: reject,
          closed: reject,
          pinged: () => (socket.close(), resolve()),
        },
      );
    });
    const peer = await server.peer();
    peer.ping();
    await pinged;
  });

  it("of a browser sends its bearer token with TLS alone", async () => {
    const sent: (string | null)[] = [];
    const { fetch } = globalThis;
    globalThis.fetch = (_, init) => {
      sent.push(new Headers(init?.headers).get("authorization"));
      return Promise.resolve(new Response());
    };
    try {
      for (const secure of [true, false]) {
        const address = { host: "127.0.0.1:1", secure };
        const request = { method: "GET", path: "/", headers: { "X-Forward": "never" } };
        await browserPlatform("secret").request(address, request, new AbortController().signal, () => undefined);
      }
    } finally {
      globalThis.fetch = fetch;
    }
    assert.deepEqual(sent, ["Bearer secret", null]);
    assert.throws(() => browserPlatform("no token"), TypeError);
    assert.throws(() => browserPlatform("a/b="), /WebSocket/);
  });

  type FakeSocket = { onopen: () => void; onclose: (event: object) => void };

  /** What pages without a network do: they fetch from these hosts, and open WebSockets with these protocols. */
  async function pages(connect: (handlers: SocketHandlers, sockets: FakeSocket[]) => Promise<void>) {
    const done: unknown[] = [];
    const sockets: FakeSocket[] = [];
    const { WebSocket, fetch } = globalThis;
    globalThis.WebSocket = class {
      static OPEN = 1;
      readyState = 1;
      onopen = () => undefined;
      onclose = () => undefined;
      constructor(url: string, protocols: string[]) {
        done.push([url, ...protocols]);
        sockets.push(this);
      }
      send(frame: string) {
        done.push(frame);
      }
      close() {
        done.push("closed");
      }
    } as unknown as typeof WebSocket;
    globalThis.fetch = (url) => {
      done.push(url);
      return Promise.resolve(new Response());
    };
    const handlers = { opened: () => undefined, received: () => undefined, closed: () => undefined };
    try {
      await connect(handlers as unknown as SocketHandlers, sockets);
    } finally {
      Object.assign(globalThis, { WebSocket, fetch });
    }
    return { done };
  }

  it("of a browser offers its bearer token as a protocol, with TLS alone", async () => {
    const { done } = await pages(async (handlers) => {
      for (const [token, secure] of [["secret", true], ["secret", false], [undefined, true]] as const) {
        browserPlatform(token).connect({ host: "offers:1", secure }, handlers);
        await sleep(1);
      }
    });
    const [secured, plain] = ["wss://offers:1/v1/hold", "ws://offers:1/v1/hold"];
    assert.deepEqual(done, [
      "https://offers:1/healthz",
      [secured, "palisade", "bearer.secret"],
      [plain],
      [secured],
    ]);
  });

  it("of a browser meets a host over TLS before its first WebSocket, and again after one that was refused", async () => {
    const address = { host: "meets:1", secure: true };
    const platform = browserPlatform(undefined);
    const { done } = await pages(async (handlers, sockets) => {
      for (let attempt = 0; attempt < 3; attempt++) {
        platform.connect(address, handlers).send("too early");
        await sleep(1);
        if (attempt === 0) sockets.at(-1)?.onopen();
        sockets.at(-1)?.onclose({ code: 1006, reason: "" });
      }
      platform.connect(address, handlers).close();
      await sleep(1);
    });
    const [met, dialled] = ["https://meets:1/healthz", ["wss://meets:1/v1/hold"]];
    assert.deepEqual(done, [met, dialled, dialled, met, dialled, met], "the last one was closed before it was dialled");
  });

  it("of a browser has met a host that has answered any request over TLS", async () => {
    const address = { host: "answers:1", secure: true };
    const platform = browserPlatform(undefined);
    const { done } = await pages(async (handlers) => {
      const request = { method: "GET", path: "/v1/status" };
      await platform.request(address, request, new AbortController().signal, () => undefined);
      platform.connect(address, handlers);
      await sleep(1);
    });
    assert.deepEqual(done, ["https://answers:1/v1/status", ["wss://answers:1/v1/hold"]]);
  });

  it("of a browser waits for no host that does not answer, and reports what it cannot dial", async () => {
    const reasons: string[] = [];
    const { done } = await pages(async (handlers) => {
      globalThis.fetch = () => new Promise(() => undefined);
      const platform = browserPlatform(undefined);
      platform.connect({ host: "silent:1", secure: true }, handlers);
      await sleep(600);
      globalThis.WebSocket = class {
        constructor() {
          throw new SyntaxError("this port is blocked");
        }
      } as unknown as typeof WebSocket;
      const closed = (reason: string) => void reasons.push(reason);
      platform.connect({ host: "silent:1", secure: true }, { ...handlers, closed });
      await sleep(600);
    });
    assert.deepEqual(done, [["wss://silent:1/v1/hold"]]);
    assert.deepEqual(reasons, ["SyntaxError: this port is blocked"]);
  });

  it("of a browser sees no pings, so their absence says nothing", () => {
    assert.equal(browserPlatform(undefined).silenceMs, Infinity);
  });
});

describe("endpoints", () => {
  const hosts = (list: string | string[]) => parseEndpoints(list, false).map(({ host }) => host);

  // The same lists stand in client/src/endpoints.rs, and in the tests of the clients in Python and Go.
  it("are read as the command line reads them", () => {
    const lists = [
      ["a:1,2,b:3,4", "a:1 a:2 b:3 b:4"],
      ["[::1]:7401,7402", "[::1]:7401 [::1]:7402"],
      ["10.0.0.1:7400, 127.0.0.1:7401,7402", "10.0.0.1:7400 127.0.0.1:7401 127.0.0.1:7402"],
      ["http://127.0.0.1:7401 http://127.0.0.1:7402", "127.0.0.1:7401 127.0.0.1:7402"],
      ["http://a:1/,2, http://[::1]:3", "a:1 a:2 [::1]:3"],
    ] as const;
    for (const [list, expected] of lists) assert.equal(hosts(list).join(" "), expected);
    assert.deepEqual(hosts(["a:1", "b:2"]), ["a:1", "b:2"]);
  });

  it("are dialled with TLS if their scheme or the client says so", () => {
    assert.deepEqual(
      parseEndpoints("https://a:1,2 ws://b:3", true).map(({ secure }) => secure),
      [true, true, false],
    );
    assert.deepEqual(parseEndpoints("a:1", true), [{ host: "a:1", secure: true }]);
    const https = ["a:1", "a:2"].map((host) => ({ host, secure: true }));
    assert.deepEqual(parseEndpoints("https://a:1/,2", false), https);
  });

  it("are refused if they are none", () => {
    const bad = [
      "",
      "7401",
      "host",
      "host:",
      "host:0",
      "host:70000",
      ":1",
      "::1:7401",
      "a:1,,a:2",
      "a:+1",
      "https://a",
      "https://a:1/x",
      "http://a",
      "http://a:1/x",
      "ftp://a:1",
      "a b:1",
      "u@a:1",
    ];
    for (const list of bad) assert.throws(() => parseEndpoints(list, false), TypeError, list);
    assert.throws(() => parseEndpoints([], false), TypeError);
  });

  it("are read from a redirect", () => {
    const from = { host: "a:1", secure: false };
    assert.deepEqual(redirectTarget("http://b:2/v1/hold", from), { host: "b:2", secure: false });
    assert.deepEqual(redirectTarget("https://b:2/v1/hold?x", from), { host: "b:2", secure: true });
    assert.equal(redirectTarget("/v1/hold", from), undefined);
    assert.equal(redirectTarget("http://b:2/", { host: "a:1", secure: true }), undefined);
  });
});

describe("the package", () => {
  it("has one dependency, and none in a browser", () => {
    const root = new URL("../../", import.meta.url);
    const manifest = JSON.parse(readFileSync(new URL("package.json", root), "utf8"));
    assert.deepEqual(Object.keys(manifest.dependencies), ["ws"]);
    const seen = new Set<string>();
    const visit = (file: URL) => {
      if (seen.has(file.href)) return;
      seen.add(file.href);
      const source = readFileSync(file, "utf8");
      for (const [, name] of source.matchAll(/(?:from|import)\s+"([^"]+)"/g)) {
        assert.match(name ?? "", /^\.\//, `${file} imports ${name}`);
        visit(new URL(name ?? "", file));
      }
    };
    visit(new URL(manifest.exports["."].browser.default, root));
    assert.ok(seen.size > 8);
  });
});

/** Starts the adapter; it reads commands and says answers. */
class Adapter {
  readonly child: ChildProcess;
  readonly said: any[] = [];
  readonly exited: Promise<number | null>;

  constructor(endpoints: string) {
    const file = fileURLToPath(new URL("../adapter.js", import.meta.url));
    this.child = spawn(process.execPath, [file, "--endpoints", endpoints], { stdio: ["pipe", "pipe", "inherit"] });
    createInterface({ input: this.child.stdout! }).on("line", (line) => this.said.push(JSON.parse(line)));
    this.exited = new Promise((resolve) => this.child.on("exit", resolve));
  }

  do(command: object): void {
    this.child.stdin!.write(`${JSON.stringify(command)}\n`);
  }

  async answer(matches: (said: any) => boolean): Promise<any> {
    for (let tries = 0; tries < 3_000; tries++) {
      const found = this.said.find(matches);
      if (found !== undefined) return found;
      await sleep(10);
    }
    throw new Error(`no such answer in ${JSON.stringify(this.said)}`);
  }
}

describe("the pause of a route", () => {
  const [address] = parseEndpoints("a:1", false);
  assert.ok(address !== undefined);

  it("is random from the first one on, so that the clients of a dead server do not come back in step", () => {
    const draws = [0, 0.5, 0.9];
    const pauses = draws.map((draw) => new Route([address], {}, () => draw).failed(address, true));
    assert.deepEqual(pauses, [50, 75, 95]);
  });

  it("is 50 to 500 ms, and short again after an answer", () => {
    const pausesWith = (draw: number) => {
      const route = new Route([address], {}, () => draw);
      const pauses = Array.from({ length: 5 }, () => Math.round(route.failed(address, true)));
      route.succeeded(address);
      return [...pauses, Math.round(route.failed(address, true))];
    };
    assert.deepEqual(pausesWith(0), [50, 50, 50, 50, 50, 50]);
    assert.deepEqual(pausesWith(1 - 2 ** -53), [100, 200, 400, 500, 500, 100]);
  });
});

describe("a process", () => {
  it("ends by itself after the release, and after a failure", async () => {
    await using server = await FakeServer.start();
    const code = `
      import { Client } from "palisade-lock";
      const client = new Client(process.argv[1]);
      await client.withLock("nightly", { ttlMs: 60000 }, () => console.log("worked"));
      await client.lock("nightly").catch((error) => console.log(error.code));`;
    const root = fileURLToPath(new URL("../../", import.meta.url));
    const child = spawn(process.execPath, ["--input-type=module", "-e", code, server.endpoint], {
      cwd: root,
      stdio: ["ignore", "pipe", "inherit"],
    });
    let output = "";
    child.stdout.on("data", (data) => (output += data));
    const exited = new Promise((resolve) => child.on("exit", resolve));
    const peer = await server.peer();
    await peer.grant(17, 60_000);
    await peer.expect("release");
    // The server says `released` and does not answer a farewell: the client must not wait for that.
    peer.freeze();
    peer.send({ released: {} });
    const second = await server.peer();
    await second.expect("acquire");
    second.send({ error: { error: "held", message: "held" } });
    const timer = setTimeout(() => child.kill("SIGKILL"), 15_000);
    assert.equal(await exited, 0);
    clearTimeout(timer);
    assert.equal(output, "worked\nheld\n");
  });

  it("learns at once that a pause was longer than its lease", { skip: process.platform === "win32" }, async () => {
    await using server = await FakeServer.start();
    const adapter = new Adapter(server.endpoint);
    adapter.do({ id: 1, do: "acquire", name: "a", key: "nightly", ttl_ms: 3_000, wait_ms: 0 });
    const peer = await server.peer();
    await peer.grant(17, 3_000);
    await adapter.answer(({ id }) => id === 1);
    adapter.child.kill("SIGSTOP");
    await sleep(3_200);
    adapter.do({ id: 2, do: "state", name: "a" });
    peer.send({ check: { n: 1 } });
    peer.send({ renewed: { n: 1, ttl_ms: 3_000 } });
    adapter.child.kill("SIGCONT");
    const state = await adapter.answer(({ id }) => id === 2);
    assert.deepEqual(state.ok, { valid: false, token: 17, remaining_ms: 0 });
    const lost = await adapter.answer(({ event }) => event === "lost");
    assert.deepEqual([lost.name, lost.error], ["a", "expired"]);
    adapter.do({ id: 3, do: "release", name: "a" });
    assert.equal((await adapter.answer(({ id }) => id === 3)).error, "lost");
    adapter.child.stdin!.write('{"id":4,"do":"state","name":"a"}\n{"id":5,"do":"quit"}\n');
    assert.equal(await adapter.exited, 0);
    assert.equal((await adapter.answer(({ id }) => id === 4)).ok.valid, false);
    assert.equal(adapter.said.filter(({ event }) => event === "lost").length, 1);
  });

  it("speaks the control protocol of adapters", async () => {
    await using server = await FakeServer.start();
    const adapter = new Adapter(server.endpoint);
    adapter.do({
      id: 1,
      do: "acquire",
      name: "a",
      keys: ["x", "y"],
      ttl_ms: 60_000,
      wait_ms: 10,
      owner: "o",
      permits: 1,
      of: 2,
      max_queue: 3,
      value: "v",
    });
    const peer = await server.peer();
    const { wait_ms, ...asked } = await peer.grant(17, 60_000);
    assert.ok(wait_ms <= 10);
    assert.deepEqual(asked, {
      keys: ["x", "y"],
      ttl_ms: 60_000,
      owner: "o",
      permits: 1,
      of: 2,
      max_queue: 3,
      value: "v",
    });
    const granted = await adapter.answer(({ id }) => id === 1);
    assert.deepEqual(granted.ok, { token: 17 });
    assert.ok(Math.abs(granted.at_us - Date.now() * 1_000) < 60e6);
    adapter.do({ id: 2, do: "value", name: "a", value: "w" });
    await peer.expect("value");
    peer.send({ proclaimed: { n: 1 } });
    assert.deepEqual(await adapter.answer(({ id }) => id === 2), { id: 2, ok: {} });
    adapter.do({ id: 3, do: "acquire", name: "b", key: "z", wait_ms: 60_000 });
    const waiting = await server.peer();
    await waiting.expect("acquire");
    adapter.do({ id: 4, do: "cancel", name: "b" });
    assert.equal((await adapter.answer(({ id }) => id === 3)).error, "cancelled");
    assert.deepEqual(await adapter.answer(({ id }) => id === 4), { id: 4, ok: {} });
    adapter.do({ id: 5, do: "release", name: "a" });
    await peer.expect("release");
    peer.send({ released: {} });
    assert.deepEqual((await adapter.answer(({ id }) => id === 5)).ok, {});
    adapter.child.stdin!.end();
    assert.equal(await adapter.exited, 0);
  });
});
