/**
 * A job under a lock, each of whose writes has the lock's fencing token.
 *
 * The job writes a record of Palisade, which refuses a stale token; a database would do the same in a transaction
 * (README.md, "Fencing"). It never asks whether it still holds the lock: a process can be paused after any question, so
 * what protects the record is the token. The project's README says which faults to try while the job runs: "A job that
 * survives the leader, and notices a pause".
 *
 * ```
 * PALISADE_ENDPOINTS=127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 node dist/examples/nightly.js
 * ```
 */

import { setTimeout as sleep } from "node:timers/promises";
import { Client, PalisadeError } from "palisade-lock";

const endpoints = (process.env["PALISADE_ENDPOINTS"] ?? "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403").split(",");

/**
 * Writes the record `nightly`. False if the cluster refuses the token.
 *
 * Any node will do: it forwards the request to the leader. While there is no leader, or a node is down, the job tries
 * the next node.
 */
async function write(text: string, headers: Record<string, string>): Promise<boolean> {
  for (;;) {
    for (const endpoint of endpoints) {
      const url = `http://${endpoint}/v1/kv/nightly`;
      const request = { method: "PUT", body: text, headers, signal: AbortSignal.timeout(5_000) };
      const response = await fetch(url, request).catch(() => undefined);
      if (response?.ok === true) return true;
      if (response === undefined || response.status === 503) continue;
      const refusal = await response.text();
      if (response.status !== 409) throw new Error(`${url}: ${response.status} ${refusal}`);
      console.log(`${text} is refused: ${refusal}`);
      return false;
    }
    await sleep(200);
  }
}

const client = new Client(endpoints);
try {
  console.log(`process ${process.pid} asks for the lock`);
  await client.withLock("nightly", { ttlMs: 5_000, waitMs: 600_000 }, async (lock) => {
    console.log(`process ${process.pid} holds the lock with token ${lock.token}`);
    const fence = lock.headers();
    for (let page = 1; page <= 60; page++) {
      if (!(await write(`page ${page}`, fence))) break;
      console.log(`page ${page} is written`);
      await sleep(1_000);
    }
  });
  // `withLock` throws LockLost above if the lock was lost, however the function ended.
  console.log("the job is done");
} catch (error) {
  if (!(error instanceof PalisadeError)) throw error;
  console.error(`the job is not done: ${error.message}`);
  process.exitCode = 1;
}
