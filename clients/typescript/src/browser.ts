/**
 * A client of the Palisade lock service, for web pages whose origin the servers allow. TLS and certificates are the
 * browser's; a page on `https` dials endpoints without a scheme by `wss`.
 *
 * @packageDocumentation
 */

import { browserPlatform } from "./browser-platform.js";
import { CoreClient, type CoreOptions } from "./core-client.js";

export * from "./exports.js";

/** What holds for all locks and requests of a client. */
export interface ClientOptions extends CoreOptions {
  /**
   * The bearer token of the client. Servers with TLS demand it of a page of another origin: a browser presents its user's
   * certificate also where the user has not asked for anything. It is sent with TLS only.
   */
  readonly token?: string;
}

/** A client of a cluster. */
export class Client extends CoreClient {
  /**
   * @param endpoints the servers, `HOST:PORT`, separated by commas or spaces, or as a list; a bare port takes the host
   *   before it, and an endpoint may be a URL
   * @throws TypeError if an endpoint or the token is unusable.
   */
  constructor(endpoints: string | readonly string[], options: ClientOptions = {}) {
    super(endpoints, options, browserPlatform(options.token));
  }
}
