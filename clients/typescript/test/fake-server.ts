// A server that says what a test tells it to say.

import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { type WebSocket, WebSocketServer } from "ws";

export const SESSION = "00000000-0000-0001-a3d2-6ffe1fa85f94";

type Frame = Record<string, any>;

/** Things that arrive, and those that wait for them. */
class Inbox<T> {
  readonly #things: T[] = [];
  readonly #waiters: ((thing: T) => void)[] = [];

  put(thing: T): void {
    const waiter = this.#waiters.shift();
    if (waiter === undefined) this.#things.push(thing);
    else waiter(thing);
  }

  /** The next thing; fails after 10 s, so that a test that waits in vain ends. */
  take(what: string): Promise<T> {
    if (this.#things.length > 0) return Promise.resolve(this.#things.shift() as T);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${what} came within 10 s`)), 10_000);
      this.#waiters.push((thing) => (clearTimeout(timer), resolve(thing)));
    });
  }

  get size(): number {
    return this.#things.length;
  }
}

/** One connection of a client. */
export class Peer {
  readonly #socket: WebSocket;
  readonly #frames = new Inbox<Frame>();
  readonly #ends = new Inbox<void>();

  constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.on("message", (data) => this.#frames.put(JSON.parse(data.toString())));
    socket.on("close", () => this.#ends.put());
    socket.on("error", () => undefined);
  }

  read(): Promise<Frame> {
    return this.#frames.take("frame");
  }

  /** The next frame, which must be of this kind. */
  async expect(kind: string): Promise<any> {
    const frame = await this.read();
    assert.deepEqual(Object.keys(frame), [kind]);
    return frame[kind];
  }

  send(frame: object | string | Buffer): void {
    this.#socket.send(typeof frame === "string" || Buffer.isBuffer(frame) ? frame : JSON.stringify(frame));
  }

  ping(): void {
    this.#socket.ping();
  }

  /** Answers the first frame with a grant. */
  async grant(token = 17, ttl_ms = 3_000): Promise<any> {
    const [body] = Object.values(await this.read());
    this.send({ waiting: { session: SESSION, ttl_ms } });
    this.send({ granted: { key: body.key, token, session: SESSION, ttl_ms } });
    return body;
  }

  /** Reads nothing any more, also no farewell. */
  freeze(): void {
    this.#socket.pause();
  }

  /** Ends the connection without a farewell. */
  cut(): void {
    this.#socket.terminate();
  }

  ended(): Promise<void> {
    return this.#ends.take("end of the connection");
  }
}

/** A fake server on a free port. */
export class FakeServer implements AsyncDisposable {
  readonly #http: Server;
  readonly #sockets = new WebSocketServer({ noServer: true });
  readonly #peers = new Inbox<Peer>();
  readonly #raw = new Set<Duplex>();
  /** The heads of all upgrades. */
  readonly requests: IncomingMessage[] = [];
  /** Answers an upgrade in place of a WebSocket: status line and headers, and a body. Or says nothing at all. */
  refuse: { head: string; body: object } | "silence" | undefined;

  private constructor(http: Server) {
    this.#http = http;
    http.on("connection", (socket) => this.#raw.add(socket));
    http.on("upgrade", (request, socket, head) => this.#upgrade(request, socket, head));
  }

  /** @param serve answers what is no upgrade */
  static async start(serve?: RequestListener): Promise<FakeServer> {
    const http = createServer(serve ?? ((_request, response) => void response.writeHead(404).end()));
    const server = new FakeServer(http);
    await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
    return server;
  }

  #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    this.requests.push(request);
    if (this.refuse === "silence") return;
    if (this.refuse !== undefined) {
      const body = JSON.stringify(this.refuse.body);
      socket.end(`HTTP/1.1 ${this.refuse.head}\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
      return;
    }
    this.#sockets.handleUpgrade(request, socket, head, (ws) => this.#peers.put(new Peer(ws)));
  }

  get endpoint(): string {
    return `127.0.0.1:${(this.#http.address() as AddressInfo).port}`;
  }

  /** The next connection. */
  peer(): Promise<Peer> {
    return this.#peers.take("connection");
  }

  /** How many connections no test has taken. */
  get untaken(): number {
    return this.#peers.size;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#raw) socket.destroy();
    await new Promise((resolve) => this.#http.close(resolve));
  }
}

/** Whether a promise is settled after the work that is queued now. */
export async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  const pending = Symbol();
  const soon = new Promise((resolve) => setImmediate(() => resolve(pending)));
  return (
    (await Promise.race([
      promise.then(
        () => true,
        () => true,
      ),
      soon,
    ])) !== pending
  );
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Blocks the event loop, as a long computation does. */
export function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}
