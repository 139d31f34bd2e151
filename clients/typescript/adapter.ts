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
import {
  Client,
  type ClientOptions,
  Compacted,
  type Lock,
  type LockHolder,
  LockLost,
  type LockOptions,
  type LockPage,
  type LockView,
  OtherVersion,
  PalisadeError,
  type RecordChange,
  StaleToken,
  type WatchEvent,
  type WriteOptions,
} from "palisade-lock";

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
  readonly under?: string;
  readonly if_version?: number;
  readonly conditions?: readonly WireCondition[];
  readonly changes?: readonly RecordChange[];
  readonly prefix?: string;
  readonly limit?: number;
  readonly after?: string;
}

type WireCondition =
  | { readonly held: { readonly lock: string; readonly token: number } }
  | { readonly version: { readonly key: string; readonly version: number } };

const locks = new Map<string, Lock>();
const waits = new Map<string, AbortController>();
const watches = new Map<string, AbortController>();
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

function writeOptions({ under, if_version }: Command): WriteOptions {
  return {
    ...(under !== undefined && { lock: held(under) }),
    ...(if_version !== undefined && { ifVersion: if_version }),
  };
}

function transact(client: Client, { changes = [], conditions = [] }: Command): Promise<number> {
  const meant = conditions.map((one) =>
    "held" in one ? { held: { key: one.held.lock, token: one.held.token } } : one,
  );
  return client.records.transact(changes, meant);
}

/** A lock with the names of the server's fields. */
function shown({ key, held, holders, queue }: LockView): object {
  const holder = ({ expiresInMs, ...others }: LockHolder) => ({ ...others, expires_in_ms: expiresInMs });
  return { key, held, holders: holders.map(holder), queue };
}

async function list(client: Client, { prefix, limit }: Command): Promise<object> {
  const found: object[] = [];
  let page: LockPage = { locks: [] };
  do {
    const after = page.nextAfter;
    page = await client.list(prefix, { ...(limit !== undefined && { limit }), ...(after !== undefined && { after }) });
    found.push(...page.locks.map(shown));
  } while (page.nextAfter !== undefined);
  return { locks: found };
}

function tellWatched(name: string, event: WatchEvent): void {
  if (event.kind !== "listing") {
    const { kind, ...fields } = event;
    return say({ event: "changed", name, change: kind, ...fields });
  }
  const { revision, complete } = event;
  const keys = (views: readonly { readonly key: string }[]) => views.map(({ key }) => key);
  say({ event: "listed", name, revision, complete, locks: keys(event.locks), records: keys(event.records) });
}

async function watch(client: Client, { name, key, prefix = "", after }: Command, { signal }: AbortController) {
  const target = key === undefined ? { prefix } : { key };
  try {
    for await (const event of client.watch({ ...target, signal, ...(after !== undefined && { after }) })) {
      tellWatched(name, event);
    }
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof Compacted) return say({ event: "compacted", name, floor: error.floor });
    const code = error instanceof PalisadeError ? error.code : "invalid";
    say({ event: "unwatched", name, error: code, message: String(error) });
  }
}

async function carryOut(client: Client, command: Command): Promise<object> {
  const { name, key = "", value = "" } = command;
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
      await held(name).setValue(value);
      return {};
    case "put":
      return { version: await client.records.put(key, value, writeOptions(command)) };
    case "append":
      return { version: await client.records.append(key, value, writeOptions(command)) };
    case "delete":
      return { version: await client.records.delete(key, writeOptions(command)) };
    case "transact":
      return { version: await transact(client, command) };
    case "get": {
      const record = await client.records.get(key);
      return { value: record.text(), version: record.version, fence: record.fence ?? null };
    }
    case "show":
      return shown(await client.show(key));
    case "list":
      return list(client, command);
    case "watch": {
      const end = new AbortController();
      watches.set(name, end);
      void watch(client, command, end);
      return {};
    }
    case "unwatch":
      watches.get(name)?.abort();
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

/** What an error says beside its code. */
function detailsOf(error: unknown): object {
  if (error instanceof StaleToken) return { seen: error.seen, got: error.got };
  return error instanceof OtherVersion ? { version: error.version } : {};
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
    (error: unknown) => {
      const told = { error: errorCode(error, command), message: String(error), ...detailsOf(error) };
      say({ id, ...told, ...time() });
    },
  );
});
lines.on("close", exit);
