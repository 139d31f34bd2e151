/**
 * The frames of `GET /v1/hold`, version 1: text frames with one JSON object of exactly one key, the kind.
 *
 * A message from a server is material to check: a field of another type, a number out of bounds or text that is no JSON
 * becomes a {@link WireError}, and the connection is given up. Unknown kinds and unknown fields are ignored, so that
 * newer servers can say more.
 */

/** The largest TTL and wait that a server accepts: 24 hours, in milliseconds. */
export const MAX_MS = 86_400_000;

/** A frame that is not of the protocol. */
export class WireError extends Error {}

/** What the client asks for, in the server's terms. */
export interface Claim {
  readonly keys: string | readonly string[];
  readonly ttlMs: number;
  readonly owner: string;
  readonly mode?: "exclusive" | "shared";
  readonly permits?: number;
  readonly of?: number;
  readonly maxQueue?: number;
  readonly value?: string;
}

/** The session of an earlier connection, and the token if it had been granted the lock. */
export interface Earlier {
  readonly session: string;
  readonly token?: number;
}

/** The body of an `error`, `lost` or `interrupted`, and of an HTTP error. */
export interface Failure {
  readonly code: string;
  readonly message: string;
  /** Where the leader is, `HOST:PORT`, if the server named it. */
  readonly leader?: string;
  readonly holder?: { readonly owner: string; readonly token: number };
  readonly queue?: number;
  /** Of a stale token: the greatest one that is known, and that of the request. */
  readonly seen?: number;
  readonly got?: number;
  /** The version that the record has instead. */
  readonly version?: number;
}

/** A message from a server. */
export type ServerMessage =
  | { readonly kind: "waiting"; readonly session: string; readonly ttlMs: number }
  | {
      readonly kind: "granted";
      readonly session: string;
      readonly token: number;
      readonly ttlMs: number;
      readonly keys?: readonly string[];
      readonly signed?: string | readonly string[];
    }
  | { readonly kind: "check"; readonly n: number }
  | { readonly kind: "renewed"; readonly n: number; readonly ttlMs: number }
  | { readonly kind: "proclaimed"; readonly n: number }
  | { readonly kind: "released" }
  | { readonly kind: "lost"; readonly failure: Failure }
  | { readonly kind: "interrupted"; readonly failure: Failure }
  | { readonly kind: "error"; readonly failure: Failure; readonly n?: number }
  | { readonly kind: "unknown" };

/** A JSON object that is yet to be checked. */
export type Fields = Record<string, unknown>;

/** Whether a parsed value is an object. */
export function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An integer within bounds. */
export function integer(fields: Fields, name: string, least: number, most: number): number {
  const value = fields[name];
  if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > most) {
    throw new WireError(`\`${name}\` is ${short(value)} and not an integer from ${least} to ${most}`);
  }
  return value;
}

function text(fields: Fields, name: string): string {
  const value = fields[name];
  if (typeof value !== "string" || value === "") throw new WireError(`\`${name}\` is ${short(value)} and not a text`);
  return value;
}

/** A value for a message, cut. */
export function short(value: unknown): string {
  const shown = value === undefined ? "absent" : JSON.stringify(value);
  return shown.length > 60 ? `${shown.slice(0, 60)}…` : shown;
}

/** A list of texts; `undefined` if it is none. */
export function texts(value: unknown): readonly string[] | undefined {
  return Array.isArray(value) && value.every((one) => typeof one === "string") ? value : undefined;
}

/** Reads the body of an error. Only `error` is required; the rest helps people and reconnects. */
export function parseFailure(body: unknown): Failure {
  if (!isObject(body)) throw new WireError(`${short(body)} is not the body of an error`);
  const { message, leader, holder, queue, seen, got, version } = body;
  return {
    code: text(body, "error"),
    message: typeof message === "string" ? message : "",
    ...(isObject(leader) && typeof leader["client_addr"] === "string" && { leader: leader["client_addr"] }),
    ...(isObject(holder) &&
      typeof holder["token"] === "number" && {
        holder: { owner: typeof holder["owner"] === "string" ? holder["owner"] : "", token: holder["token"] },
      }),
    ...(typeof queue === "number" && { queue }),
    ...(typeof seen === "number" && { seen }),
    ...(typeof got === "number" && { got }),
    ...(typeof version === "number" && { version }),
  };
}

/**
 * Reads a frame.
 * @throws {@link WireError} if it is not of the protocol.
 */
export function parseMessage(frame: string): ServerMessage {
  let parsed: unknown;
  try {
    parsed = JSON.parse(frame);
  } catch {
    throw new WireError(`${short(frame)} is not JSON`);
  }
  if (!isObject(parsed)) throw new WireError(`${short(parsed)} is not an object`);
  const [entry, ...others] = Object.entries(parsed);
  if (entry === undefined || others.length > 0) throw new WireError(`${short(parsed)} has not exactly one key`);
  const [kind, body] = entry;
  return parseBody(kind, isObject(body) ? body : {}, body);
}

function parseBody(kind: string, fields: Fields, body: unknown): ServerMessage {
  switch (kind) {
    case "waiting":
      return { kind, session: text(fields, "session"), ttlMs: integer(fields, "ttl_ms", 1, MAX_MS) };
    case "granted": {
      const keys = texts(fields["keys"]);
      const { signed: one } = fields;
      const signed = typeof one === "string" ? one : texts(one);
      return {
        kind,
        session: text(fields, "session"),
        token: integer(fields, "token", 1, Number.MAX_SAFE_INTEGER),
        ttlMs: integer(fields, "ttl_ms", 1, MAX_MS),
        ...(keys !== undefined && { keys }),
        ...(signed !== undefined && { signed }),
      };
    }
    case "check":
      return { kind, n: integer(fields, "n", 0, Number.MAX_SAFE_INTEGER) };
    case "renewed":
      return {
        kind,
        n: integer(fields, "n", 0, Number.MAX_SAFE_INTEGER),
        ttlMs: integer(fields, "ttl_ms", 1, MAX_MS),
      };
    case "proclaimed":
      return { kind, n: integer(fields, "n", 0, Number.MAX_SAFE_INTEGER) };
    case "released":
      return { kind };
    case "lost":
    case "interrupted":
      return { kind, failure: parseFailure(body) };
    case "error":
      return {
        kind,
        failure: parseFailure(body),
        ...(typeof fields["n"] === "number" && { n: fields["n"] }),
      };
    default:
      return { kind: "unknown" };
  }
}

function claimFields(claim: Claim): Fields {
  return {
    ...(typeof claim.keys === "string" ? { key: claim.keys } : { keys: claim.keys }),
    ttl_ms: claim.ttlMs,
    owner: claim.owner,
    ...(claim.mode !== undefined && { mode: claim.mode }),
    ...(claim.permits !== undefined && { permits: claim.permits }),
    ...(claim.of !== undefined && { of: claim.of }),
  };
}

/** The first frame of a client that has no session yet. */
export function acquireFrame(claim: Claim, waitMs: number): string {
  return JSON.stringify({ acquire: { ...claimFields(claim), wait_ms: waitMs, ...waiterFields(claim) } });
}

/**
 * The first frame of a client that goes on with its session.
 *
 * With a token, `value` is left out: the server keeps the value of the grant, which may have been replaced since the
 * acquire. So is `max_queue`, which is for waiters.
 */
export function resumeFrame(claim: Claim, earlier: Earlier, waitMs: number): string {
  const own = earlier.token === undefined ? { wait_ms: waitMs, ...waiterFields(claim) } : { token: earlier.token };
  return JSON.stringify({ resume: { ...claimFields(claim), session: earlier.session, ...own } });
}

function waiterFields(claim: Claim): Fields {
  return {
    ...(claim.maxQueue !== undefined && { max_queue: claim.maxQueue }),
    ...(claim.value !== undefined && { value: claim.value }),
  };
}

/** The answer to check `n`. */
export function hereFrame(n: number): string {
  return JSON.stringify({ here: n });
}

/** Replaces the value of the grant. */
export function valueFrame(n: number, value: string): string {
  return JSON.stringify({ value: { n, value } });
}

/** Releases the lock, or gives up the queue position, and ends the session: the last frame of a client. */
export const RELEASE_FRAME = JSON.stringify({ release: {} });
