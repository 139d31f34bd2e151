/** What goes into the engine and comes out of it, and what the codes of servers mean to a client. */

import type { Address } from "./endpoints.js";
import {
  Held,
  type LockLost,
  NoRecord,
  OtherVersion,
  type PalisadeError,
  Refused,
  StaleToken,
  StoreFull,
  Timeout,
} from "./errors.js";
import { type Failure, parseFailure } from "./wire.js";

/** A server that cannot serve now, while another one or the same one may in a moment. */
export const PASSING = new Set([
  "no_leader",
  "not_leader",
  "leadership_lost",
  "shutting_down",
  "overloaded",
  "change_not_ready",
  "not_found",
  "method_not_allowed",
]);
/** What a client that waits also waits for. */
export const WAITED_FOR = new Set(["no_space", "too_soon"]);
/** The server does not know this client, for example because its file of tokens is older than that of the others. */
export const UNKNOWN_CLIENT = new Set(["denied", "unauthenticated"]);
/** The session or its grant does not exist any more. */
export const GONE = new Set(["no_session", "not_holder", "gone", "withdrawn"]);

/** What the driver is to do, in this order. */
export type Action =
  | { readonly do: "connect"; readonly link: number; readonly address: Address }
  | { readonly do: "send"; readonly link: number; readonly text: string }
  | { readonly do: "close"; readonly link: number }
  | { readonly do: "tell"; readonly event: EngineEvent };

/** What the user is told. */
export type EngineEvent =
  | {
      readonly kind: "granted";
      readonly token: number;
      /** The order of `signed`, if there are several keys. */
      readonly keys?: readonly string[];
      readonly signed?: string | readonly string[];
    }
  | { readonly kind: "refused"; readonly error: PalisadeError }
  | { readonly kind: "lost"; readonly error: LockLost }
  | { readonly kind: "released"; readonly error?: LockLost }
  | { readonly kind: "proclaimed"; readonly n: number; readonly error?: PalisadeError };

/** An answer of HTTP that may be a refusal: to the upgrade, or to a request. */
export interface HttpRefusal {
  readonly status: number;
  readonly location?: string;
  readonly body: string;
}

/** How long to try, in milliseconds. */
export interface Patience {
  /** How long to wait for the grant. */
  readonly waitMs: number;
  /** How long to look for a server that can answer, also if `waitMs` is less. */
  readonly reachMs: number;
  /** How long a server that is well may say nothing, whatever the TTL; `Infinity` where its pings are not seen. */
  readonly silenceMs: number;
}

/** The error that a server's refusal is to the user. */
export function refused(failure: Failure): PalisadeError {
  const message = failure.message || failure.code;
  switch (failure.code) {
    case "held":
      return new Held(message, failure.holder, failure.queue);
    case "timeout":
      return new Timeout(message);
    case "stale fencing token":
      return new StaleToken(message, failure.seen, failure.got);
    case "other_version":
      return failure.version === undefined
        ? new Refused(failure.code, message)
        : new OtherVersion(message, failure.version);
    case "store_full":
      return new StoreFull(message);
    case "no_record":
      return new NoRecord(message);
    default:
      return new Refused(failure.code, message);
  }
}

/** The failure in an HTTP answer; with an empty code if it is not from a Palisade server. */
export function httpFailure(refusal: HttpRefusal): Failure {
  try {
    return parseFailure(JSON.parse(refusal.body));
  } catch {
    return { code: "", message: `HTTP status ${refusal.status}, which is no answer of Palisade` };
  }
}
