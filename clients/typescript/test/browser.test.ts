// The client in a page of a real browser, if there is one: Chromium without a window.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { RequestListener } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { FakeServer } from "./fake-server.js";

const browser = ["chromium", "chromium-browser", "google-chrome"].find(
  (name) => spawnSync(name, ["--version"]).status === 0,
);

const PAGE = `<!doctype html><script type="module">
  import { Client, LockLost, Unreachable } from "/src/browser.js";
  const said = [];
  try {
    const client = new Client(location.host);
    await client.withLock("nightly", { waitMs: 5000, owner: "page" }, async (lock) => {
      said.push(lock.token, lock.isValid, lock.headers()["X-Fence-Token"]);
      const error = await lock.lost;
      said.push(error instanceof LockLost, error.code, lock.signal.aborted, lock.isValid);
    }).catch((error) => said.push(error.name));
    await client.withLock("again", () => said.push("again"));
    said.push(await client.records.put("k", "v", { lock: { key: "nightly", token: 17 } }));
    for (const write of [
      () => client.records.append("lost", "v"),
      () => client.records.put("done", "v", { ifVersion: 3 }),
      () => client.records.put("lost", "v"),
    ]) await write().catch((error) => said.push(error.name, error.cause?.name));
    for await (const { kind, version } of client.watch({ key: "k", after: "6" })) {
      if (said.push(kind + version) && version === 2) break;
    }
    const nowhere = new Client("127.0.0.1:9", { reachMs: 200 });
    await nowhere.lock("nightly").catch((error) => said.push(error instanceof Unreachable));
  } catch (error) {
    said.push(String(error));
  }
  await fetch("/said", { method: "POST", body: JSON.stringify(said) });
</script>`;

/** Removes the folder of a browser: processes that it has started end just after it, and may still create a file. */
async function remove(folder: string): Promise<void> {
  for (let attempts = 100; ; attempts -= 1) {
    try {
      return rmSync(folder, { recursive: true, force: true });
    } catch (error) {
      if (attempts === 0) throw error;
      await sleep(100);
    }
  }
}

describe("a page", { skip: browser === undefined ? "there is no browser" : false }, () => {
  it("holds a lock, loses one, releases one, writes a record and follows a watch", { timeout: 60_000 }, async () => {
    let tell: (said: string) => void;
    const told = new Promise<string>((resolve) => (tell = resolve));
    const writes = new Map<string, number>();
    const serve: RequestListener = async (request, response) => {
      if (request.url === "/said") {
        let body = "";
        for await (const chunk of request) body += chunk;
        tell(body);
        response.end();
      } else if (request.url?.startsWith("/v1/kv/k?lock=nightly") === true) {
        let body = "";
        for await (const chunk of request) body += chunk;
        const isRight = body === "v" && request.headers["x-fence-token"] === "17";
        response.end(JSON.stringify({ version: isRight ? 4 : 0 }));
      } else if (request.url?.startsWith("/v1/kv/") === true) {
        for await (const _ of request);
        const before = writes.get(request.url) ?? 0;
        writes.set(request.url, before + 1);
        // The first put is done, its answer is lost with a connection that was used before: the browser sends it again.
        if (request.url !== "/v1/kv/done?if_version=3" || before === 0) request.socket.destroy();
        else response.writeHead(409).end(JSON.stringify({ error: "other_version", message: "", version: 4 }));
      } else if (request.url === "/v1/watch?key=k&after=6") {
        response.setHeader("Content-Type", "text/event-stream");
        response.end('id: 7\nevent: put\ndata: {"revision":7,"key":"k","version":1}\n\n');
      } else if (request.url === "/v1/watch?key=k&after=7") {
        response.setHeader("Content-Type", "text/event-stream");
        response.write('id: 8\nevent: put\ndata: {"revision":8,"key":"k","version":2}\n\n');
      } else if (request.url === "/") {
        response.setHeader("Content-Type", "text/html");
        response.end(PAGE);
      } else if (
        request.url?.startsWith("/src/") === true &&
        !request.url.includes("..") &&
        request.url.endsWith(".js")
      ) {
        response.setHeader("Content-Type", "text/javascript");
        response.end(readFileSync(new URL(`..${request.url}`, import.meta.url)));
      } else response.writeHead(404).end();
    };
    await using server = await FakeServer.start(serve);
    const profile = mkdtempSync(join(tmpdir(), "palisade-page-"));
    const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", `--user-data-dir=${profile}`];
    const child = spawn(browser ?? "", [...flags, "--remote-debugging-port=0", `http://${server.endpoint}/`], {
      stdio: "ignore",
    });
    const exited = new Promise((resolve) => child.on("exit", resolve));
    try {
      const peer = await server.peer();
      assert.equal((await peer.grant(17, 30_000)).owner, "page");
      peer.send({ check: { n: 1 } });
      assert.equal(await peer.expect("here"), 1);
      peer.send({ lost: { error: "not_holder", message: "broken" } });
      const next = await server.peer();
      await next.grant(18, 30_000);
      await next.expect("release");
      next.send({ released: {} });
      const expected: unknown[] = [17, true, "17", true, "not_holder", true, false, "LockLost", "again"];
      expected.push(4, "TypeError", null, "UnknownOutcome", "OtherVersion", "UnknownOutcome", null);
      expected.push("put1", "put2", true);
      assert.deepEqual(JSON.parse(await told), expected);
      // The client sends the second put once; how often the browser does is its own affair.
      assert.deepEqual([...writes.keys()], ["/v1/kv/done?if_version=3", "/v1/kv/lost"]);
      assert.equal(writes.get("/v1/kv/done?if_version=3"), 2);
      assert.equal(server.requests[0]?.headers.origin, `http://${server.endpoint}`);
    } finally {
      child.kill("SIGKILL");
      await exited;
      await remove(profile);
    }
  });
});
