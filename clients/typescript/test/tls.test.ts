// TLS: which servers the client trusts, and how it proves its identity. `openssl` makes the certificates for each run.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { IncomingMessage } from "node:http";
import { createServer, type Server } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import type { TLSSocket } from "node:tls";
import { Client, Unreachable } from "palisade-lock";
import { WebSocketServer } from "ws";
import { SESSION } from "./fake-server.js";

const hasOpenssl = spawnSync("openssl", ["version"]).status === 0;

describe("TLS", { skip: hasOpenssl ? false : "there is no `openssl`" }, () => {
  let folder: string;
  let server: Server;
  let endpoint: string;
  const seen: { authorization: string | undefined; subject: string | undefined }[] = [];
  const pem = (name: string) => readFileSync(join(folder, name));

  function issue(name: string, extra: string[] = []): void {
    const files = ["-keyout", join(folder, `${name}.key`), "-out", join(folder, `${name}.pem`)];
    const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    execFileSync("openssl", ["req", "-x509", "-days", "2", "-subj", `/CN=${name}`, ...key, ...files, ...extra], {
      stdio: "ignore",
    });
  }

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "palisade-lock-"));
    for (const ca of ["ca", "other"]) issue(ca);
    const signed = ["-CA", join(folder, "ca.pem"), "-CAkey", join(folder, "ca.key")];
    issue("server", [
      ...signed,
      "-addext",
      "subjectAltName=IP:127.0.0.1",
      "-addext",
      "basicConstraints=critical,CA:FALSE",
    ]);
    issue("client", [...signed, "-addext", "basicConstraints=critical,CA:FALSE"]);
    const tls = { ca: pem("ca.pem"), cert: pem("server.pem"), key: pem("server.key"), minVersion: "TLSv1.3" as const };
    server = createServer({ ...tls, requestCert: true, rejectUnauthorized: false });
    const note = (request: IncomingMessage) => {
      const { CN } = (request.socket as TLSSocket).getPeerCertificate().subject ?? {};
      seen.push({ authorization: request.headers.authorization, subject: CN as string | undefined });
    };
    server.on("request", (request, response) => {
      note(request);
      response.end('{"version":4}');
    });
    const sockets = new WebSocketServer({ server });
    sockets.on("connection", (socket, request) => {
      note(request);
      socket.on("message", (data) => {
        const granted = { granted: { key: "nightly", token: 17, session: SESSION, ttl_ms: 30_000 } };
        socket.send(JSON.stringify("acquire" in JSON.parse(data.toString()) ? granted : { released: {} }));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    endpoint = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  });

  after(() => {
    server.closeAllConnections();
    server.close();
    rmSync(folder, { recursive: true });
  });

  it("carries a client certificate", async () => {
    const client = new Client(endpoint, {
      tls: { ca: pem("ca.pem"), cert: pem("client.pem"), key: pem("client.key") },
    });
    await client.withLock("nightly", () => undefined);
    assert.deepEqual(seen.pop(), { authorization: undefined, subject: "client" });
    assert.equal(await client.records.append("k", "v"), 4);
    assert.deepEqual(seen.pop(), { authorization: undefined, subject: "client" });
  });

  it("carries a bearer token", async () => {
    const client = new Client(`https://${endpoint}`, {
      tls: { ca: [pem("other.pem"), pem("ca.pem")], token: "secret" },
    });
    await client.withLock("nightly", () => undefined);
    assert.deepEqual(seen.pop(), { authorization: "Bearer secret", subject: undefined });
    assert.equal(await client.records.append("k", "v"), 4);
    assert.deepEqual(seen.pop(), { authorization: "Bearer secret", subject: undefined });
  });

  it("believes no server of another CA, and sends it nothing", async () => {
    const before = seen.length;
    const strangers = [
      { tls: { ca: pem("other.pem"), token: "secret" }, reachMs: 1_500 },
      { tls: { token: "secret" }, reachMs: 1_500 },
    ];
    for (const options of strangers) {
      const client = new Client(endpoint, options);
      for (const ask of [() => client.lock("nightly"), () => client.records.append("k", "v")]) {
        await assert.rejects(ask, (error: Error) => {
          assert.ok(error instanceof Unreachable);
          assert.match(error.message, /certificate/);
          return true;
        });
      }
    }
    assert.equal(seen.length, before);
  });
});
