/**
 * A client of the Palisade lock service, for Node.
 *
 * ```ts
 * import { Client } from "palisade-lock";
 *
 * const client = new Client("127.0.0.1:7401,7402,7403");
 * await client.withLock("nightly", { ttlMs: 30_000, waitMs: 10_000 }, async (lock) => {
 *   await fetch("https://reports.example/nightly", { method: "PUT", headers: lock.headers(), signal: lock.signal });
 * });
 * ```
 *
 * @packageDocumentation
 */

import { CoreClient, type CoreOptions } from "./core-client.js";
import { parseEndpoints } from "./endpoints.js";
import { nodePlatform, type TlsOptions } from "./node-platform.js";

export * from "./exports.js";
export type { TlsOptions } from "./node-platform.js";

/** What holds for all locks of a client. */
export interface ClientOptions extends CoreOptions {
  /** Dial the servers with TLS. Without it, only endpoints that begin with `https://` or `wss://` are. */
  readonly tls?: TlsOptions;
}

/** A client of a cluster. */
export class Client extends CoreClient {
  /**
   * @param endpoints the servers, `HOST:PORT`, separated by commas or spaces, or as a list; a bare port takes the host
   *   before it, and an endpoint may be a URL
   * @throws TypeError if an endpoint or a TLS option is unusable.
   */
  constructor(endpoints: string | readonly string[], options: ClientOptions = {}) {
    const platform = nodePlatform(options.tls);
    const plain = parseEndpoints(endpoints, platform.secure).find((address) => platform.secure && !address.secure);
    if (plain !== undefined)
      throw new TypeError(`${plain.host} is named without TLS, and \`tls\` demands it: use https://`);
    super(endpoints, options, platform);
  }
}
