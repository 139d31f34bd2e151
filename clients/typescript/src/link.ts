/** The connection of an engine. At most one is in use at any time; its number tells it from those before it. */

import type { Address } from "./endpoints.js";

/** No connection, and when to dial; a connection that is being opened; an open one. */
export type Link =
  | { readonly state: "idle"; readonly retryAt: number }
  | { readonly state: "dialling"; readonly id: number; readonly address: Address; readonly until: number }
  | OpenLink;

/** A connection over which the first frame was handed out. */
export interface OpenLink {
  readonly state: "open";
  readonly id: number;
  readonly address: Address;
  /** When the first frame was handed out. */
  readonly openedAt: number;
  /** When the server was heard last, or when an answer became due. */
  heardAt: number;
  /** Whether the first frame was answered. */
  answered: boolean;
  /** Whether the lease was renewed over it, after the first frame. */
  renewed: boolean;
  releaseSent: boolean;
  /** The times at which unanswered `here` were handed out, by their numbers. */
  readonly heres: Map<number, number>;
}
