/**
 * The errors that a caller can meet. `code` is the server's code where the server decided, and programs decide by it;
 * `message` is for people.
 */

/** What all errors of this package have in common. */
export class PalisadeError extends Error {
  /** The error code: the server's (docs/api.md, "Errors"), or `expired`, `released`, `unreachable`, `invalid`. */
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
