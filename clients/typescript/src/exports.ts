/** What both entry points export. */

export type { CoreOptions, ListOptions, LockOptions, Work } from "./core-client.js";
export {
  Compacted,
  Held,
  type HolderOfError,
  LockLost,
  NoRecord,
  OtherVersion,
  PalisadeError,
  Refused,
  StaleToken,
  StoreFull,
  Timeout,
  UnknownOutcome,
  Unreachable,
} from "./errors.js";
export { Lock } from "./lock.js";
export {
  type Condition,
  type HeldLock,
  type ReadOptions,
  type RecordChange,
  Records,
  StoredRecord,
  type WriteOptions,
} from "./records.js";
export type { LockHolder, LockPage, LockView, LockWaiter, Mode, RecordSummary } from "./views.js";
export type { Because, Change, Listing, WatchEvent, WatchOptions, WatchTarget } from "./watch.js";
