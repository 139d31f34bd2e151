/**
 * The client's platform in Node: the `ws` package and Node's HTTP, TLS with a client certificate or a bearer token,
 * `/proc/uptime`.
 */

import { X509Certificate } from "node:crypto";
import { openSync, readSync } from "node:fs";
import { type IncomingMessage, type RequestOptions, request as requestPlain } from "node:http";
import { request as requestSecure } from "node:https";
import { hostname } from "node:os";
import { createSecureContext, type SecureContext } from "node:tls";
import { WebSocket } from "ws";
import { SuspendClock } from "./clock.js";
import type { Address } from "./endpoints.js";
import {
  checkToken,
  holdUrl,
  identity,
  Unread,
  type HttpRequest,
  type HttpResponse,
  type Platform,
  type Socket,
  type SocketHandlers,
} from "./platform.js";

/** The identity of the client, and the servers that it trusts. Contents, not names of files. */
export interface TlsOptions {
  /** The certificates of the CAs that issue the servers' certificates, PEM. Without it, the system's CAs count. */
  readonly ca?: string | Buffer | readonly (string | Buffer)[];
  /** The client's certificate, PEM. */
  readonly cert?: string | Buffer;
  /** The key of the client's certificate, PEM. */
  readonly key?: string | Buffer;
  /** The bearer token of the client, in place of a certificate. */
  readonly token?: string;
}

/** The largest frame and body that is read from a server, in bytes. */
const MOST_BYTES = 256 * 1024;
/** A server that is well sends a ping every 20 s; half as much is allowed on top. In milliseconds. */
const SILENCE_MS = 30_000;
/** When the system asks whether a silent peer is still there, in milliseconds. */
const KEEP_ALIVE_MS = 15_000;

const UPTIME_FILE = "/proc/uptime";
const uptimeText = Buffer.alloc(64);
let uptimeFile: number | undefined;

/** Milliseconds since the machine started, suspends included; `undefined` where the system does not say. */
function uptime(): number | undefined {
  try {
    uptimeFile ??= openSync(UPTIME_FILE, "r");
    const size = readSync(uptimeFile, uptimeText, 0, uptimeText.length, 0);
    const seconds = Number.parseFloat(uptimeText.toString("latin1", 0, size));
    return Number.isFinite(seconds) ? seconds * 1_000 : undefined;
  } catch {
    return undefined;
  }
}

/** The clock of this process. */
const clock = new SuspendClock(() => performance.now(), uptime);

function makeContext(tls: TlsOptions): SecureContext {
  const ca = tls.ca === undefined || typeof tls.ca === "string" || Buffer.isBuffer(tls.ca) ? tls.ca : [...tls.ca];
  for (const one of [ca ?? []].flat()) checkCertificate(one);
  return createSecureContext({
    minVersion: "TLSv1.3",
    ...(ca !== undefined && { ca }),
    ...(tls.cert !== undefined && { cert: tls.cert }),
    ...(tls.key !== undefined && { key: tls.key }),
  });
}

/** Node ignores what it cannot read as a CA, and would report every server as untrusted later. */
function checkCertificate(pem: string | Buffer): void {
  try {
    new X509Certificate(pem);
  } catch (error) {
    throw new TypeError("`ca` has no certificate: give the contents of a PEM file, not its name", { cause: error });
  }
}

/**
 * The platform of this process, with these TLS options.
 * @throws TypeError if an option is unusable, and what Node's `tls` throws if it cannot read a certificate or key.
 */
export function nodePlatform(tls: TlsOptions | undefined): Platform {
  if (tls !== undefined && (tls.cert === undefined) !== (tls.key === undefined)) {
    throw new TypeError("`cert` and `key` belong together: give both, or neither of them");
  }
  checkToken(tls?.token);
  const secureContext = tls === undefined ? undefined : makeContext(tls);
  return {
    clock,
    defaultOwner: `${hostname()}:${process.pid}`,
    secure: tls !== undefined,
    silenceMs: SILENCE_MS,
    usesFetch: false,
    afterArrivals: (work) => void setImmediate(work),
    connect(address, handlers) {
      return connect(address, handlers, secureContext, tls?.token);
    },
    request(address, request, signal, sending) {
      return send(address, request, signal, sending, secureContext, tls?.token);
    },
  };
}

function connect(
  address: Address,
  handlers: SocketHandlers,
  secureContext: SecureContext | undefined,
  token: string | undefined,
): Socket {
  const socket = new WebSocket(holdUrl(address), {
    headers: identity(address, token),
    perMessageDeflate: false,
    followRedirects: false,
    maxPayload: MOST_BYTES,
    ...(address.secure && secureContext !== undefined && { secureContext }),
  });
  let isClosed = false;
  let reason = "the connection ended";
  const report = (work: () => void) => {
    if (!isClosed) work();
  };
  socket.on("upgrade", (response) => response.socket.setKeepAlive(true, KEEP_ALIVE_MS));
  socket.on("open", () => report(() => handlers.opened()));
  socket.on("message", (data, isBinary) => report(() => handlers.received(isBinary ? undefined : data.toString())));
  socket.on("ping", () => report(() => handlers.pinged()));
  socket.on("unexpected-response", (_request, response) =>
    readRefusal(response, (refusal) => report(() => handlers.refused(refusal))),
  );
  // After an error comes `close`, with no reason of its own.
  socket.on("error", (error) => (reason = explain(error, address.secure)));
  socket.on("close", () => report(() => handlers.closed(reason)));
  return {
    send: (frame) => socket.send(frame, () => undefined),
    close: () => {
      isClosed = true;
      socket.terminate();
    },
  };
}

/**
 * Sends a request. Its connection serves no other one: a server may close an idle connection at any moment, and a write
 * that is sent over it just then would have an unknown outcome.
 */
function send(
  address: Address,
  { method, path, headers, body }: HttpRequest,
  signal: AbortSignal,
  sending: () => void,
  secureContext: SecureContext | undefined,
  token: string | undefined,
): Promise<HttpResponse> {
  const colon = address.host.lastIndexOf(":");
  const options: RequestOptions & { secureContext?: SecureContext } = {
    hostname: address.host.slice(0, colon).replace(/^\[|\]$/g, ""),
    port: address.host.slice(colon + 1),
    method,
    path,
    headers: {
      ...headers,
      ...identity(address, token),
      ...(body !== undefined && { "Content-Length": body.length }),
    },
    agent: false,
    signal,
    ...(address.secure && secureContext !== undefined && { secureContext }),
  };
  return new Promise((resolve, reject) => {
    const outgoing = (address.secure ? requestSecure : requestPlain)(options);
    outgoing.on("socket", (socket) => {
      socket.setKeepAlive(true, KEEP_ALIVE_MS);
      socket.once(address.secure ? "secureConnect" : "connect", sending);
    });
    outgoing.on("response", (incoming) => resolve(responseOf(incoming)));
    outgoing.on("error", (error: SocketError) => {
      const reason = explain(error, address.secure);
      reject(isUnread(error, address.secure) ? new Unread(reason) : new Error(reason));
    });
    outgoing.end(body);
  });
}

function responseOf(incoming: IncomingMessage): HttpResponse {
  return {
    status: incoming.statusCode ?? 0,
    header: (name) => {
      const value = incoming.headers[name];
      return Array.isArray(value) ? value[0] : value;
    },
    body: incoming,
  };
}

type SocketError = NodeJS.ErrnoException & { rawPacket?: Buffer };

/** The first byte with which a server that requires TLS answers a request without it. */
const TLS_ALERT = 0x15;

/** Whether the server has refused what it was sent before it could read it: by an alert of TLS. */
function isUnread(error: SocketError, isSecure: boolean): boolean {
  if (!isSecure) return error.rawPacket?.[0] === TLS_ALERT;
  return /^ERR_SSL_.*ALERT_.*(CERTIFICATE|UNKNOWN_CA)/.test(error.code ?? "");
}

/** What went wrong with a connection, for people. Node's HTTP parser keeps the bytes that are no HTTP. */
function explain(error: SocketError, isSecure: boolean): string {
  if (!isSecure && isUnread(error, isSecure)) return "the server requires TLS: give the client `tls`";
  return error.message || String(error.code);
}

/** Reads the answer to an upgrade that was refused. It is cut at {@link MOST_BYTES}; the engine limits the time. */
function readRefusal(
  response: IncomingMessage,
  done: (refusal: { status: number; location?: string; body: string }) => void,
): void {
  const chunks: Buffer[] = [];
  let size = 0;
  const finish = () => {
    const { location } = response.headers;
    const body = Buffer.concat(chunks).toString();
    done({ status: response.statusCode ?? 0, body, ...(location !== undefined && { location }) });
  };
  response.on("data", (chunk: Buffer) => {
    size += chunk.length;
    if (size <= MOST_BYTES) chunks.push(chunk);
    else response.destroy();
  });
  response.on("error", () => undefined);
  response.on("close", finish);
}
