/** What servers show of locks and records: the types, and how the JSON is read. */

import { type Fields, WireError, integer, isObject, short, texts } from "./wire.js";

/** Whether others may hold the lock at the same time. */
export type Mode = "exclusive" | "shared" | "semaphore";

/** A session that waits for a lock. */
export interface LockWaiter {
  readonly owner: string;
  /** The public number of the session. */
  readonly session: number;
  readonly mode: Mode;
  /** Of a semaphore: the permits that it will take. */
  readonly permits?: number;
  /** Of a semaphore: all its permits. */
  readonly of?: number;
  /** All keys of the claim, if there are several. */
  readonly keys: readonly string[];
}

/** A session that holds a lock. */
export interface LockHolder extends LockWaiter {
  readonly token: number;
  /** Milliseconds until the session expires if it is not renewed. */
  readonly expiresInMs: number;
  /** How many releases give the lock up. */
  readonly holds: number;
  /** The value of the grant. */
  readonly value?: string;
}

/** A lock, which may be free. */
export interface LockView {
  readonly key: string;
  readonly held: boolean;
  /** In the order of their grants: an exclusive one is alone. */
  readonly holders: readonly LockHolder[];
  /** In the order of arrival. */
  readonly queue: readonly LockWaiter[];
  /** The age of a stale read, in milliseconds; absent if it was linearizable, or if the server does not know it. */
  readonly ageMs?: number;
}

/** Locks in the byte order of their keys. */
export interface LockPage {
  readonly locks: readonly LockView[];
  /** Where the next page begins; absent at the end. */
  readonly nextAfter?: string;
  /** As in {@link LockView}. */
  readonly ageMs?: number;
}

/** A record without its content. */
export interface RecordSummary {
  readonly key: string;
  readonly version: number;
  /** The greatest token that the last write of the record had to hold; absent if it had to hold none. */
  readonly fence?: number;
  /** The length of the content. */
  readonly bytes: number;
}

/** Parses JSON that must be an object. */
export function parseObject(text: string): Fields {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new WireError(`${short(text)} is not JSON`);
  }
  return asObject(parsed);
}

function asObject(value: unknown): Fields {
  if (!isObject(value)) throw new WireError(`${short(value)} is not an object`);
  return value;
}

/** A text, which may be empty. */
export function string(fields: Fields, name: string): string {
  const value = fields[name];
  if (typeof value !== "string") throw new WireError(`\`${name}\` is ${short(value)} and not a text`);
  return value;
}

export function boolean(fields: Fields, name: string): boolean {
  const value = fields[name];
  if (typeof value !== "boolean") throw new WireError(`\`${name}\` is ${short(value)} and not a boolean`);
  return value;
}

/** An integer that JSON and JavaScript can hold. */
export function count(fields: Fields, name: string): number {
  return integer(fields, name, 0, Number.MAX_SAFE_INTEGER);
}

/** The same, or `undefined` if it is absent or `null`. */
export function optionalCount(fields: Fields, name: string): number | undefined {
  return fields[name] === undefined || fields[name] === null ? undefined : count(fields, name);
}

/** The elements of a list. */
export function list<T>(fields: Fields, name: string, read: (element: Fields) => T): T[] {
  const value = fields[name];
  if (!Array.isArray(value)) throw new WireError(`\`${name}\` is ${short(value)} and not a list`);
  return value.map((element) => read(asObject(element)));
}

/** What holders, waiters and their events say of a claim. */
export function claimOf(fields: Fields): Omit<LockWaiter, "keys"> {
  const [permits, of] = [optionalCount(fields, "permits"), optionalCount(fields, "of")];
  return {
    owner: string(fields, "owner"),
    session: count(fields, "session"),
    mode: string(fields, "mode") as Mode,
    ...(permits !== undefined && { permits }),
    ...(of !== undefined && { of }),
  };
}

function waiter(fields: Fields): LockWaiter {
  return { ...claimOf(fields), keys: texts(fields["keys"]) ?? [] };
}

function holder(fields: Fields): LockHolder {
  const { value } = fields;
  return {
    ...waiter(fields),
    token: count(fields, "token"),
    expiresInMs: count(fields, "expires_in_ms"),
    holds: count(fields, "holds"),
    ...(typeof value === "string" && { value }),
  };
}

function age(fields: Fields): { ageMs?: number } {
  const ageMs = optionalCount(fields, "age_ms");
  return ageMs === undefined ? {} : { ageMs };
}

/** Reads a lock. */
export function lockView(fields: Fields): LockView {
  return {
    key: string(fields, "key"),
    held: boolean(fields, "held"),
    holders: list(fields, "holders", holder),
    queue: list(fields, "queue", waiter),
    ...age(fields),
  };
}

/** Reads a page of locks. */
export function lockPage(fields: Fields): LockPage {
  const { next_after: nextAfter } = fields;
  const locks = list(fields, "locks", lockView);
  return { locks, ...(typeof nextAfter === "string" && { nextAfter }), ...age(fields) };
}

/** Reads a record without its content. */
export function recordSummary(fields: Fields): RecordSummary {
  const fence = optionalCount(fields, "fence");
  return {
    key: string(fields, "key"),
    version: count(fields, "version"),
    bytes: count(fields, "bytes"),
    ...(fence !== undefined && { fence }),
  };
}
