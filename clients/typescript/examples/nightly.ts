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
import { Client, type Lock, NoRecord, OtherVersion, PalisadeError, StaleToken, UnknownOutcome } from "palisade-lock";

const endpoints = process.env["PALISADE_ENDPOINTS"] ?? "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403";
const client = new Client(endpoints, { reachMs: 60_000 });

/** The record `nightly`; version 0 if there is none. */
async function stored(): Promise<{ version: number; text: string; fence?: number | undefined }> {
  try {
    const record = await client.records.get("nightly");
    return { version: record.version, text: record.text(), fence: record.fence };
  } catch (error) {
    if (error instanceof NoRecord) return { version: 0, text: "" };
    throw error;
  }
}

/** Writes the record in place of this version. Returns the new version. */
async function write(text: string, lock: Lock, version: number): Promise<number> {
  try {
    return await client.records.put("nightly", text, { lock, ifVersion: version });
  } catch (error) {
    if (!(error instanceof UnknownOutcome || error instanceof OtherVersion)) throw error;
    // A node died, and the answer with it; the write may even have been done late. Only the holder writes, so the
    // record tells what happened; the next holder may write the same text, under another token.
    const found = await stored();
    const isOurs = found.text === text && found.fence === lock.token;
    return isOurs ? found.version : write(text, lock, found.version);
  }
}

try {
  console.log(`process ${process.pid} asks for the lock`);
  await client.withLock("nightly", { ttlMs: 5_000, waitMs: 600_000 }, async (lock) => {
    console.log(`process ${process.pid} holds the lock with token ${lock.token}`);
    let { version } = await stored();
    for (let page = 1; page <= 60; page++) {
      try {
        version = await write(`page ${page}`, lock, version);
      } catch (error) {
        if (!(error instanceof StaleToken)) throw error;
        console.log(`page ${page} is refused: ${error.message}`);
        break;
      }
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
