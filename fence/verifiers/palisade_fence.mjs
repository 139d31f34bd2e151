#!/usr/bin/env node
// Verifies signed fencing tokens of Palisade. One file, for Node 18 or later, without packages.
// docs/fence-format.md is the reference, and fence/vectors.json the test.
//
//   import { Verifier, decide } from "./palisade_fence.mjs";
//   const verifier = new Verifier("billing", ["fence1root...."]);
//   const grant = verifier.verify("reports/nightly", signed);   // throws Refusal
//   // In the transaction of the write that the token protects:
//   const step = decide(epoch, mark, grant);                    // throws Refusal; "raise" or "repeat"
//   // At "raise" keep grant.epoch, and { token, session } as the mark of the key; a higher epoch
//   // ends the marks of all keys. Epochs, tokens and sessions are BigInt.

import { createHash, createPublicKey, verify as verifySignature } from "node:crypto";
import { readFileSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";

const GRANT_DOMAIN = Buffer.from("palisade fence 1 grant\0");
const CERTIFICATE_DOMAIN = Buffer.from("palisade fence 1 certificate\0");
// The DER of a public key, before its 32 bytes.
const KEY_HEADER = Buffer.from("302a300506032b6570032100", "hex");
// The y coordinates of the points of small order, little-endian.
const SMALL_ORDER = [
  "0000000000000000000000000000000000000000000000000000000000000000",
  "0100000000000000000000000000000000000000000000000000000000000000",
  "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
  "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
  "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];
const P = (1n << 255n) - 19n;
const ORDER = (1n << 252n) + 27742317777372353535851937790883648493n;

/** Why a token is not admitted. `code` is the same in all languages. */
export class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const malformed = (reason) => new Refusal("malformed", `this is not a signed token: ${reason}`);

const littleEndian = (bytes) => BigInt(`0x${Buffer.from(bytes).reverse().toString("hex")}`);

const modulo = (number) => ((number % P) + P) % P;

function power(base, exponent) {
  let result = 1n;
  for (base = modulo(base); exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) result = (result * base) % P;
    base = (base * base) % P;
  }
  return result;
}

/** Whether the encoding is canonical, a point of the curve, and of an order that is not small. */
function isSafe(publicKey) {
  const masked = Buffer.from(publicKey);
  masked[31] &= 0x7f;
  const y = littleEndian(masked);
  if (y >= P || SMALL_ORDER.includes(masked.toString("hex"))) return false;
  // x² = (y² - 1) / (d·y² + 1) must be a square.
  const d = modulo(-121665n * power(121666n, P - 2n));
  const square = modulo((y * y - 1n) * power(d * y * y + 1n, P - 2n));
  return power(square, (P - 1n) / 2n) === 1n;
}

function verifies(publicKey, domain, payload, signature) {
  if (littleEndian(signature.subarray(32)) >= ORDER) return false;
  const key = createPublicKey({ key: Buffer.concat([KEY_HEADER, publicKey]), format: "der", type: "spki" });
  return verifySignature(null, Buffer.concat([domain, payload]), key, signature);
}

/** The bytes of base64url without padding, of which each byte sequence has one text. */
function decodeText(what, text) {
  const bytes = Buffer.from(text, "base64url");
  // Buffer.from skips what it does not understand.
  if (bytes.toString("base64url") !== text) throw malformed(`the ${what} is not canonical base64url`);
  return bytes;
}

/** Reads fields of a fixed layout, and no byte more. */
class Reader {
  constructor(what, rest) {
    this.what = what;
    this.rest = rest;
  }

  take(length) {
    if (this.rest.length < length) throw malformed(`the ${this.what} is too short`);
    const taken = this.rest.subarray(0, length);
    this.rest = this.rest.subarray(length);
    return taken;
  }

  number() {
    return this.take(8).readBigUInt64BE();
  }

  text(length) {
    if (length === 0) throw malformed(`a text in the ${this.what} is empty`);
    const bytes = this.take(length);
    try {
      // A byte order mark is part of the text.
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      throw malformed(`a text in the ${this.what} is not UTF-8`);
    }
  }

  end() {
    if (this.rest.length > 0) throw malformed(`bytes follow the fields of the ${this.what}`);
  }
}

function splitSignature(what, content) {
  if (content.length < 64) throw malformed(`the ${what} is shorter than a signature`);
  return [content.subarray(0, -64), content.subarray(-64)];
}

const keyId = (publicKey) => createHash("sha256").update(publicKey).digest("hex").slice(0, 16);

/** The parts of a signed token, of which nothing is verified yet. */
function parse(text) {
  const version = /^fence([0-9]{1,3})(\.|$)/.exec(text);
  if (version && version[1] !== "1") {
    throw new Refusal("unknown_version", "the signed token has a format other than `fence1`; update the verifier");
  }
  const parts = text.split(".");
  if (parts.length !== 3 || parts[0] !== "fence1") throw malformed("it is not `fence1.GRANT.CERTIFICATE`");

  const [grantPayload, grantSignature] = splitSignature("grant", decodeText("grant", parts[1]));
  let reader = new Reader("grant", grantPayload);
  const signedBy = reader.take(8).toString("hex");
  const cluster = reader.text(reader.take(1)[0]);
  const epoch = reader.number();
  const key = reader.text(reader.take(2).readUInt16BE());
  const grant = { cluster, epoch, key, token: reader.number(), session: reader.number() };
  reader.end();

  const [payload, signature] = splitSignature("certificate", decodeText("certificate", parts[2]));
  reader = new Reader("certificate", payload);
  const certificate = { payload, signature, root: reader.take(8).toString("hex") };
  certificate.cluster = reader.text(reader.take(1)[0]);
  certificate.epoch = reader.number();
  certificate.notBefore = reader.number();
  certificate.notAfter = reader.number();
  certificate.publicKey = reader.take(32);
  reader.end();
  return { signedBy, grant, grantPayload, grantSignature, certificate };
}

function parseRoot(text) {
  if (!text.startsWith("fence1root.")) throw new Error("a root's public key begins with `fence1root.`");
  const publicKey = decodeText("root", text.slice("fence1root.".length));
  if (publicKey.length !== 32 || !isSafe(publicKey)) {
    throw new Error("the text after `fence1root.` is not an Ed25519 public key");
  }
  return publicKey;
}

/**
 * The IDs of a list, as `keyId` writes them. Another text would match no key, and so admit the tokens of the thief:
 * the verifier does not start with it.
 */
function parseRefused(ids) {
  if (!Array.isArray(ids)) throw new TypeError("`refused` is a list of the IDs of signing keys");
  return ids.map((id) => {
    if (typeof id !== "string" || !/^[0-9a-fA-F]{16}$/.test(id)) {
      throw new TypeError(`a refused signing key has an ID of 16 hexadecimal digits, not ${JSON.stringify(String(id))}`);
    }
    return id.toLowerCase();
  });
}

/**
 * Verifies tokens of one cluster. `refused`: a list of the IDs of stolen signing keys. `clock`: a function that
 * returns seconds since 1970, or null where there is no clock: then windows are not checked.
 */
export class Verifier {
  constructor(cluster, roots, { refused = [], clock = () => Date.now() / 1000 } = {}) {
    this.cluster = cluster;
    this.roots = new Map(roots.map(parseRoot).map((root) => [keyId(root), root]));
    this.refused = new Set(parseRefused(refused));
    this.clock = clock;
  }

  /** The grant of a genuine token of the lock `key`; otherwise throws Refusal. */
  verify(key, text) {
    const { signedBy, grant, grantPayload, grantSignature, certificate } = parse(text);
    this.checkCertificate(certificate);
    const id = keyId(certificate.publicKey);
    if (signedBy !== id) {
      throw new Refusal("other_key", "the grant and the certificate beside it name different signing keys");
    }
    if (!verifies(certificate.publicKey, GRANT_DOMAIN, grantPayload, grantSignature)) {
      throw new Refusal("forged", `the grant is not signed by key ${id}: it was forged or changed`);
    }
    if (grant.cluster !== certificate.cluster) {
      throw new Refusal("certificate_of_another_cluster", "the signing key is certified for another cluster");
    }
    if (grant.epoch !== certificate.epoch) {
      throw new Refusal("certificate_of_another_epoch", "the signing key is certified for another restore epoch");
    }
    if (grant.key !== key) throw new Refusal("wrong_key", `the token is of lock ${grant.key}, not ${key}`);
    return grant;
  }

  checkCertificate({ payload, signature, root, cluster, notBefore, notAfter, publicKey }) {
    const trusted = this.roots.get(root);
    if (!trusted) throw new Refusal("unknown_root", `root ${root} is not trusted`);
    if (!verifies(trusted, CERTIFICATE_DOMAIN, payload, signature)) {
      throw new Refusal("forged_certificate", `the certificate is not signed by root ${root}`);
    }
    if (!isSafe(publicKey)) throw new Refusal("unsafe_key", "the certified key is not a safe Ed25519 public key");
    if (cluster !== this.cluster) {
      throw new Refusal("wrong_cluster", `the key is certified for cluster ${cluster}, not ${this.cluster}`);
    }
    if (this.refused.has(keyId(publicKey))) {
      throw new Refusal("refused_key", "the signing key is on the list of refused keys");
    }
    if (this.clock === null) return;
    const now = BigInt(Math.floor(this.clock()));
    if (now < notBefore) {
      throw new Refusal("not_yet_valid", `the certificate begins at second ${notBefore}; it is ${now}`);
    }
    if (now >= notAfter) throw new Refusal("expired", `the certificate ended at second ${notAfter}; it is ${now}`);
  }
}

/**
 * Whether a genuine grant may act: "raise" (keep its epoch and mark first) or "repeat". `epoch`: the
 * highest that the resource has seen of the cluster, 0n at first. `mark`: { token, session } of the
 * highest grant of this key in that epoch, or undefined.
 */
export function decide(epoch, mark, grant) {
  if (grant.epoch < epoch) {
    throw new Refusal("stale_epoch", `the cluster was restored since: epoch ${grant.epoch}, now ${epoch}`);
  }
  if (grant.epoch > epoch || !mark || grant.token > mark.token) return "raise";
  if (grant.token < mark.token) {
    throw new Refusal("stale_token", `token ${grant.token} is stale: token ${mark.token} was seen`);
  }
  if (grant.session !== mark.session) {
    throw new Refusal("token_of_another_session", `two sessions have token ${mark.token}: no cluster grants that`);
  }
  return "repeat";
}

function runVectors(path) {
  const vectors = JSON.parse(readFileSync(path, "utf8"));
  const verifier = ({ cluster, roots, refused, now }) =>
    new Verifier(cluster, roots, { refused, clock: now === null ? null : () => Number(now) });
  const attempt = (action) => {
    try {
      return action();
    } catch (error) {
      if (error instanceof Refusal) return error.code;
      throw error;
    }
  };
  for (const vector of vectors.cases) {
    const answer = attempt(() => {
      const { epoch, token, session } = verifier(vector).verify(vector.key, vector.signed);
      return `ok ${epoch} ${token} ${session}`;
    });
    console.log(`${vector.name}: ${answer}`);
  }
  for (const history of vectors.histories) {
    let [epoch, marks] = [0n, new Map()];
    const answers = history.steps.map((step) =>
      attempt(() => {
        const grant = verifier(history).verify(step.key, step.signed);
        const result = decide(epoch, marks.get(grant.key), grant);
        if (grant.epoch > epoch) [epoch, marks] = [grant.epoch, new Map()];
        marks.set(grant.key, { token: grant.token, session: grant.session });
        return result;
      }),
    );
    console.log(`${history.name}: ${answers.join(" ")}`);
  }
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const [first, ...others] = process.argv.slice(2);
  if (first === "--vectors" && others.length === 1) {
    runVectors(others[0]);
  } else if (others.length === 3) {
    try {
      console.log(new Verifier(others[0], [first]).verify(others[1], others[2]));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      console.error(`refused (${error.code}): ${error.message}`);
      process.exitCode = 1;
    }
  } else {
    console.error("usage: palisade_fence.mjs ROOT CLUSTER KEY SIGNED | --vectors FILE");
    process.exitCode = 2;
  }
}
