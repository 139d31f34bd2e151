/**
 * The errors that a caller can meet. `code` is the server's code where the server decided, and programs decide by it;
 * `message` is for people.
 */

/** What all errors of this package have in common. */
export class PalisadeError extends Error {
  /** The error code: the server's (docs/api.md, "Errors"), or `expired`, `released`, `unreachable`, `unknown`. */
  readonly code: string;

  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** The holder that {@link Held} names. */
export interface HolderOfError {
  readonly owner: string;
  readonly token: number;
}

/** Another session holds the lock, and the request does not wait, or not in so long a queue. */
export class Held extends PalisadeError {
  /** The holder of the lock; absent if clients only wait for it, or if this client may not know. */
  readonly holder: HolderOfError | undefined;
  /** How many sessions wait for the lock, if the server said so. */
  readonly queue: number | undefined;

  constructor(message: string, holder?: HolderOfError, queue?: number) {
    super("held", message);
    this.holder = holder;
    this.queue = queue;
  }
}

/** The wait ended without a grant. */
export class Timeout extends PalisadeError {
  constructor(message: string) {
    super("timeout", message);
  }
}

/**
 * The lock is held no longer, although it was not released. `code` is `expired` if the lease ended by this client's
 * own clock, and the server's code (`not_holder`, `no_session`, …) if the server said so.
 */
export class LockLost extends PalisadeError {}

/** A server refused the request. `code` says why (docs/api.md, "Errors"). */
export class Refused extends PalisadeError {}

/** No server could be reached in time, or none that knows a leader. The message has the last failure. */
export class Unreachable extends PalisadeError {
  constructor(message: string) {
    super("unreachable", message);
  }
}

/**
 * A write needs a lock that is not held with its token; or the record was written under a token, and the write has
 * none. Nothing was changed.
 */
export class StaleToken extends Refused {
  /** The greatest token known at the server; absent if this client may not read the lock. */
  readonly seen: number | undefined;
  /** The token of the write; absent if it had none. */
  readonly got: number | undefined;

  constructor(message: string, seen?: number, got?: number) {
    super("stale fencing token", message);
    this.seen = seen;
    this.got = got;
  }
}

/** A record has another version than the write demands. Nothing was changed. */
export class OtherVersion extends Refused {
  /** The version that the record has; 0 if there is no record. */
  readonly version: number;

  constructor(message: string, version: number) {
    super("other_version", message);
    this.version = version;
  }
}

/** All records together would be too large. Nothing was changed; what makes them smaller is never refused. */
export class StoreFull extends Refused {
  constructor(message: string) {
    super("store_full", message);
  }
}

/** There is no record with this key. */
export class NoRecord extends Refused {
  constructor(message: string) {
    super("no_record", message);
  }
}

/**
 * The answer to a write was lost, and the client may not send the write again, or was refused when it did: the write is
 * done, or not, or will be done by a node that has it still. In a browser, which may send a write twice, so is each
 * write that was refused. `cause` is the refusal, if there was one.
 */
export class UnknownOutcome extends PalisadeError {
  constructor(message: string, options?: ErrorOptions) {
    super("unknown", message, options);
  }
}

/** Events of a watch are not there any more. Watch again without `after`: that begins with the present state. */
export class Compacted extends PalisadeError {
  /** The server has all events of later revisions. */
  readonly floor: number;

  constructor(message: string, floor: number) {
    super("compacted", message);
    this.floor = floor;
  }
}
