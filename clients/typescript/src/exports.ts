/** What both entry points export. */

export type { CoreOptions, LockOptions, Work } from "./core-client.js";
export { Held, type HolderOfError, LockLost, PalisadeError, Refused, Timeout, Unreachable } from "./errors.js";
export { Lock } from "./lock.js";
