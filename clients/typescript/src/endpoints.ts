/** Where the servers are: `HOST:PORT`, with the shorthand of the command line. */

/** How a server is dialled. */
export interface Address {
  /** `HOST:PORT`, with brackets around an IPv6 address. */
  readonly host: string;
  readonly secure: boolean;
}

const SCHEMES: Readonly<Record<string, boolean>> = { "http:": false, "ws:": false, "https:": true, "wss:": true };
const SCHEME = /^([a-z]+:)\/\/(.*?)\/?$/;
const HOST_PORT = /^(\[[^\]\s]+\]|[^:/\s@?#[\]]+):(\d{1,5})$/;

function isPort(text: string): boolean {
  return /^\d{1,5}$/.test(text) && Number(text) > 0 && Number(text) < 65_536;
}

/**
 * Reads a list of endpoints, separated by commas or spaces. A bare port takes the host of the endpoint before it. An
 * endpoint may be a URL (`http`, `https`, `ws`, `wss`), as `palisade dev` prints it. A scheme decides about TLS;
 * without one, `secure` does.
 *
 * @throws TypeError if the list is empty, or a part of it is not an endpoint.
 */
export function parseEndpoints(list: string | readonly string[], secure: boolean): Address[] {
  const addresses: Address[] = [];
  for (const part of typeof list === "string" ? split(list) : list) {
    const last = addresses.at(-1);
    const beside = last !== undefined && isPort(part);
    const whole = beside
      ? { host: `${last.host.slice(0, last.host.lastIndexOf(":"))}:${part}`, secure: last.secure }
      : parseEndpoint(part, secure);
    if (whole === undefined) {
      throw new TypeError(`"${part}" is not an endpoint: give HOST:PORT, separated by commas, as 127.0.0.1:7401,7402`);
    }
    addresses.push(whole);
  }
  if (addresses.length === 0) throw new TypeError("the list of endpoints is empty: give at least one HOST:PORT");
  return addresses;
}

function split(list: string): string[] {
  return list.split(",").flatMap((part) => (part.trim() === "" ? [""] : part.trim().split(/\s+/)));
}

/** Reads one endpoint; `undefined` if it is none. */
export function parseEndpoint(text: string, secure: boolean): Address | undefined {
  const url = SCHEME.exec(text);
  const scheme = url === null ? secure : SCHEMES[url[1] ?? ""];
  const host = url === null ? text : (url[2] ?? "");
  const parts = HOST_PORT.exec(host);
  if (scheme === undefined || parts === null || !isPort(parts[2] ?? "")) return undefined;
  return { host, secure: scheme };
}

/**
 * The address that a redirect leads to; `undefined` if it is unusable. A redirect never leads out of TLS, because the
 * other side could read the lock's session and a bearer token.
 */
export function redirectTarget(location: string, from: Address): Address | undefined {
  const url = /^(https?|wss?):\/\/([^/?#]+)/.exec(location);
  const target =
    url === null ? parseEndpoint(location, from.secure) : parseEndpoint(`${url[1]}://${url[2]}`, from.secure);
  return target === undefined || (from.secure && !target.secure) ? undefined : target;
}
