/**
 * Lets the scenario tests that all clients must pass drive this one: one JSON object a line on standard input, and one
 * a line on standard output. It uses the public interface only.
 *
 * ```
 * node dist/adapter.js --endpoints HOST:PORT,… [--ca FILE (--cert FILE --cert-key FILE | --token TEXT)]
 * ```
 */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { Client, type ClientOptions, type Lock, type LockOptions, LockLost, PalisadeError } from "palisade-lock";

interface Command {
  readonly id: number;
  readonly do: string;
  readonly name: string;
  readonly key?: string;
  readonly keys?: string[];
  readonly ttl_ms?: number;
  readonly wait_ms?: number;
  readonly owner?: string;
  readonly mode?: "exclusive" | "shared";
  readonly permits?: number;
  readonly of?: number;
  readonly max_queue?: number;
  readonly value?: string;
}

const locks = new Map<string, Lock>();
const waits = new Map<string, AbortController>();
const CANCELLED = new Error("the wait was cancelled");

/** The system's time in microseconds since 1970. */
const nowInMicros = () => Math.round((performance.timeOrigin + performance.now()) * 1_000);

const say = (message: object) => void process.stdout.write(`${JSON.stringify(message)}\n`);

function clientFromArguments(): Client {
  const { values } = parseArgs({
    options: {
      endpoints: { type: "string" },
      ca: { type: "string" },
      cert: { type: "string" },
      "cert-key": { type: "string" },
      token: { type: "string" },
    },
  });
  if (values.endpoints === undefined) throw new Error("--endpoints HOST:PORT,… is missing");
  const options: ClientOptions =
    values.ca === undefined
      ? {}
      : {
          tls: {
            ca: readFileSync(values.ca),
            ...(values.cert !== undefined && { cert: readFileSync(values.cert) }),
            ...(values["cert-key"] !== undefined && { key: readFileSync(values["cert-key"]) }),
            ...(values.token !== undefined && { token: values.token }),
          },
        };
  return new Client(values.endpoints, options);
}

function lockOptions(command: Command, signal: AbortSignal): LockOptions {
  return {
    signal,
    ...(command.ttl_ms !== undefined && { ttlMs: command.ttl_ms }),
    ...(command.wait_ms !== undefined && { waitMs: command.wait_ms }),
    ...(command.owner !== undefined && { owner: command.owner }),
    ...(command.mode !== undefined && { mode: command.mode }),
    ...(command.permits !== undefined && { permits: command.permits }),
    ...(command.of !== undefined && { of: command.of }),
    ...(command.max_queue !== undefined && { maxQueue: command.max_queue }),
    ...(command.value !== undefined && { value: command.value }),
  };
}

async function acquire(client: Client, command: Command): Promise<object> {
  const { name } = command;
  const wait = new AbortController();
  waits.set(name, wait);
  try {
    const lock = await client.lock(command.keys ?? command.key ?? "", lockOptions(command, wait.signal));
    locks.set(name, lock);
    const tellLost = () => {
      const { code } = lock.signal.reason as LockLost;
      say({ event: "lost", name, error: code, at_us: nowInMicros() });
    };
    if (lock.signal.aborted) tellLost();
    else lock.signal.addEventListener("abort", tellLost);
    return { token: lock.token };
  } finally {
    waits.delete(name);
  }
}

function held(name: string): Lock {
  const lock = locks.get(name);
  if (lock === undefined) throw new PalisadeError("invalid", `no lock was acquired under the name ${name}`);
  return lock;
}

async function carryOut(client: Client, command: Command): Promise<object> {
  const { name } = command;
  switch (command.do) {
    case "acquire":
      return acquire(client, command);
    case "state": {
      const lock = held(name);
      return { valid: lock.isValid, token: lock.token, remaining_ms: lock.remainingMs };
    }
    case "release":
      await held(name).release();
      return {};
    case "cancel":
      waits.get(name)?.abort(CANCELLED);
      return {};
    case "value":
      await held(name).setValue(command.value ?? "");
      return {};
    default:
      throw new PalisadeError("invalid", `there is no command ${command.do}`);
  }
}

function errorCode(error: unknown, command: Command): string {
  if (error === CANCELLED) return "cancelled";
  if (command.do === "release" && error instanceof LockLost) return "lost";
  return error instanceof PalisadeError ? error.code : "invalid";
}

/** Ends the program, after the answers to the commands that have been read. Nothing is released. */
const exit = () => void setImmediate(() => process.exit(0));

const client = clientFromArguments();
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => {
  if (line.trim() === "") return;
  const command = JSON.parse(line) as Command;
  const { id } = command;
  const hasTime = command.do === "acquire" || command.do === "release";
  const time = () => (hasTime ? { at_us: nowInMicros() } : {});
  if (command.do === "quit") {
    say({ id, ok: {} });
    return exit();
  }
  carryOut(client, command).then(
    (ok) => say({ id, ok, ...time() }),
    (error: unknown) => say({ id, error: errorCode(error, command), message: String(error), ...time() }),
  );
});
lines.on("close", exit);
