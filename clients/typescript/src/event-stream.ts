/** Server-sent events (`text/event-stream`), as far as servers of Palisade use them. */

import { WireError } from "./wire.js";

/** The longest line that is read, in characters: a part of a listing is shorter. */
const MOST_CHARACTERS = 64 * 1024 * 1024;

/** One event. */
export interface StreamEvent {
  /** The event's ID, if it has one; empty if the server says that there is none to resume after. */
  readonly id?: string;
  readonly kind: string;
  readonly data: string;
}

/** Finds the events in a stream that comes in pieces. */
export class EventParser {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #id: string | undefined;
  #kind = "";
  #data: string[] = [];

  /** The events that a piece completes. An event is complete with its empty line, and not before. */
  *take(piece: Uint8Array): Generator<StreamEvent> {
    const lines = (this.#rest + this.#decoder.decode(piece, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > MOST_CHARACTERS) throw new WireError("a line of the stream does not end");
    for (const line of lines) {
      const event = this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event !== undefined) yield event;
    }
  }

  #line(line: string): StreamEvent | undefined {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const name = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "id") this.#id = value;
    else if (name === "event") this.#kind = value;
    else if (name === "data") this.#data.push(value);
    return undefined;
  }

  #dispatch(): StreamEvent | undefined {
    const event = { kind: this.#kind, data: this.#data.join("\n"), ...(this.#id !== undefined && { id: this.#id }) };
    const isEmpty = this.#data.length === 0;
    this.#id = undefined;
    this.#kind = "";
    this.#data = [];
    return isEmpty ? undefined : event;
  }
}
