#!/usr/bin/env python3
"""Verifies signed fencing tokens of Palisade. One file, for Python 3.8 or later.

docs/fence-format.md is the reference, and fence/vectors.json the test. With the package
`cryptography` a verification takes less than a millisecond, without it about ten.

    from palisade_fence import Verifier, decide
    verifier = Verifier("billing", ["fence1root...."])
    grant = verifier.verify("reports/nightly", signed)    # raises Refusal
    # In the transaction of the write that the token protects:
    step = decide(epoch, mark, grant)                     # raises Refusal; "raise" or "repeat"
    # At "raise" keep grant.epoch, and (grant.token, grant.session) as the mark of the key; a
    # higher epoch ends the marks of all keys.
"""

import base64
import functools
import hashlib
import json
import os
import re
import sys
import time
from collections import namedtuple

try:
    if os.environ.get("PALISADE_FENCE_PURE"):
        raise ImportError
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
except ImportError:
    Ed25519PublicKey = None

GRANT_DOMAIN = b"palisade fence 1 grant\0"
CERTIFICATE_DOMAIN = b"palisade fence 1 certificate\0"

Grant = namedtuple("Grant", "cluster epoch key token session")


class Refusal(Exception):
    """Why a token is not admitted. `code` is the same in all languages."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


# Ed25519, for verification only: nothing here is secret, so nothing has to take constant time.

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)
IDENTITY = (0, 1, 1, 0)


def add(a, b):
    """The sum of two points in extended coordinates."""
    one, two = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    three, four = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = two - one, four - three, four + three, two + one
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def multiply(number, point):
    result = IDENTITY
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def decompress(text):
    """The point of a canonical encoding, or None."""
    y = int.from_bytes(text, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT_OF_MINUS_ONE % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return (x, y, 1, x * y % P)


def compress(point):
    inverse = pow(point[2], P - 2, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


@functools.lru_cache(maxsize=64)
def is_safe(public_key):
    """Whether the encoding is canonical and the order of the point not small."""
    point = decompress(public_key)
    return point is not None and compress(multiply(8, point)) != compress(IDENTITY)


def verifies(public_key, message, signature):
    """Whether the signature is that of a safe key."""
    s = int.from_bytes(signature[32:], "little")
    if s >= L:
        return False
    if Ed25519PublicKey is not None:
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
            return True
        except (InvalidSignature, ValueError):
            return False
    key, point = decompress(public_key), decompress(signature[:32])
    if key is None or point is None:
        return False
    digest = hashlib.sha512(signature[:32] + public_key + message).digest()
    k = int.from_bytes(digest, "little") % L
    # s·B = R + k·A, without a factor of 8: as the other verifiers.
    return compress(multiply(s, BASE)) == compress(add(point, multiply(k, key)))


# The format.


def malformed(reason):
    return Refusal("malformed", "this is not a signed token: " + reason)


def decode_text(what, text):
    """The bytes of base64url without padding, of which each byte sequence has one text."""
    if not re.fullmatch(r"[A-Za-z0-9_-]*", text, re.ASCII) or len(text) % 4 == 1:
        raise malformed("the %s is not base64url" % what)
    decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64.urlsafe_b64encode(decoded).rstrip(b"=").decode() != text:
        raise malformed("the %s is not canonical base64url" % what)
    return decoded


class Reader:
    """Reads fields of a fixed layout, and no byte more."""

    def __init__(self, what, rest):
        self.what, self.rest = what, rest

    def take(self, length):
        if len(self.rest) < length:
            raise malformed("the %s is too short" % self.what)
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def number(self, length=8):
        return int.from_bytes(self.take(length), "big")

    def text(self, length):
        if length == 0:
            raise malformed("a text in the %s is empty" % self.what)
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise malformed("a text in the %s is not UTF-8" % self.what) from None

    def end(self):
        if self.rest:
            raise malformed("bytes follow the fields of the " + self.what)


def split_signature(what, content):
    if len(content) < 64:
        raise malformed("the %s is shorter than a signature" % what)
    return content[:-64], content[-64:]


def key_id(public_key):
    return hashlib.sha256(public_key).digest()[:8]


class Signed:
    """The parts of a signed token, of which nothing is verified yet."""

    def __init__(self, text):
        version = re.match(r"fence([0-9]{1,3})(\.|\Z)", text, re.ASCII)
        if version and version.group(1) != "1":
            raise Refusal("unknown_version", "the signed token has a format other than `fence1`; update the verifier")
        parts = text.split(".")
        if len(parts) != 3 or parts[0] != "fence1":
            raise malformed("it is not `fence1.GRANT.CERTIFICATE`")
        self.grant_payload, self.grant_signature = split_signature("grant", decode_text("grant", parts[1]))
        reader = Reader("grant", self.grant_payload)
        self.key_id = reader.take(8)
        cluster, epoch = reader.text(reader.number(1)), reader.number()
        key = reader.text(reader.number(2))
        self.grant = Grant(cluster, epoch, key, reader.number(), reader.number())
        reader.end()
        content = decode_text("certificate", parts[2])
        self.certificate_payload, self.certificate_signature = split_signature("certificate", content)
        reader = Reader("certificate", self.certificate_payload)
        self.root = reader.take(8)
        self.cluster = reader.text(reader.number(1))
        self.epoch, self.not_before, self.not_after = reader.number(), reader.number(), reader.number()
        self.public_key = reader.take(32)
        reader.end()


def parse_root(text):
    if not text.startswith("fence1root."):
        raise ValueError("a root's public key begins with `fence1root.`")
    public_key = decode_text("root", text[len("fence1root.") :])
    if len(public_key) != 32 or not is_safe(public_key):
        raise ValueError("the text after `fence1root.` is not an Ed25519 public key")
    return public_key


def parse_key_id(text):
    """The bytes of a key's ID. A mistyped ID must be an error, or the stolen key would be trusted."""
    if not re.fullmatch(r"[0-9A-Fa-f]{16}", text, re.ASCII):
        raise ValueError("the ID of a refused key has 16 hexadecimal digits, unlike %r" % text)
    return bytes.fromhex(text)


class Verifier:
    """Verifies tokens of one cluster. `refused`: IDs of stolen signing keys, each in 16 hexadecimal
    digits; any other text raises ValueError.
    `clock`: seconds since 1970 as a function, or None where there is no clock: then windows of
    certificates are not checked."""

    def __init__(self, cluster, roots, refused=(), clock=time.time):
        self.cluster, self.clock = cluster, clock
        self.roots = {key_id(root): root for root in map(parse_root, roots)}
        self.refused = set(map(parse_key_id, refused))

    def verify(self, key, text):
        """The grant of a genuine token of the lock `key`; otherwise raises Refusal."""
        signed = Signed(text)
        self.check_certificate(signed)
        name = key_id(signed.public_key)
        if signed.key_id != name:
            raise Refusal("other_key", "the grant and the certificate beside it name different signing keys")
        if not verifies(signed.public_key, GRANT_DOMAIN + signed.grant_payload, signed.grant_signature):
            raise Refusal("forged", "the grant is not signed by key %s: it was forged or changed" % name.hex())
        grant = signed.grant
        if grant.cluster != signed.cluster:
            raise Refusal("certificate_of_another_cluster", "the signing key is certified for another cluster")
        if grant.epoch != signed.epoch:
            raise Refusal("certificate_of_another_epoch", "the signing key is certified for another restore epoch")
        if grant.key != key:
            raise Refusal("wrong_key", "the token is of lock %r, not %r" % (grant.key, key))
        return grant

    def check_certificate(self, signed):
        root = self.roots.get(signed.root)
        if root is None:
            raise Refusal("unknown_root", "root %s is not trusted" % signed.root.hex())
        if not verifies(root, CERTIFICATE_DOMAIN + signed.certificate_payload, signed.certificate_signature):
            raise Refusal("forged_certificate", "the certificate is not signed by root %s" % signed.root.hex())
        if not is_safe(signed.public_key):
            raise Refusal("unsafe_key", "the certified key is not a safe Ed25519 public key")
        if signed.cluster != self.cluster:
            raise Refusal("wrong_cluster", "the key is certified for cluster %r, not %r" % (signed.cluster, self.cluster))
        if key_id(signed.public_key) in self.refused:
            raise Refusal("refused_key", "the signing key is on the list of refused keys")
        now = None if self.clock is None else int(self.clock())
        if now is not None and now < signed.not_before:
            raise Refusal("not_yet_valid", "the certificate begins at second %d; it is %d" % (signed.not_before, now))
        if now is not None and now >= signed.not_after:
            raise Refusal("expired", "the certificate ended at second %d; it is %d" % (signed.not_after, now))


def decide(epoch, mark, grant):
    """Whether a genuine grant may act: "raise" (keep its epoch and mark first) or "repeat".

    epoch: the highest that the resource has seen of the cluster, 0 at first. mark: (token, session)
    of the highest grant of this key in that epoch, or None."""
    if grant.epoch < epoch:
        raise Refusal("stale_epoch", "the cluster was restored since: epoch %d, now %d" % (grant.epoch, epoch))
    if grant.epoch > epoch or mark is None or grant.token > mark[0]:
        return "raise"
    if grant.token < mark[0]:
        raise Refusal("stale_token", "token %d is stale: token %d was seen" % (grant.token, mark[0]))
    if grant.session != mark[1]:
        raise Refusal("token_of_another_session", "two sessions have token %d: no cluster grants that" % mark[0])
    return "repeat"


def run_vectors(path):
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)

    def verifier(case):
        clock = None if case["now"] is None else lambda: int(case["now"])
        return Verifier(case["cluster"], case["roots"], case.get("refused", ()), clock)

    def answer(case):
        try:
            grant = verifier(case).verify(case["key"], case["signed"])
            return "ok %d %d %d" % (grant.epoch, grant.token, grant.session)
        except Refusal as refusal:
            return refusal.code

    def steps(history):
        epoch, marks = 0, {}
        for step in history["steps"]:
            try:
                grant = verifier(history).verify(step["key"], step["signed"])
                result = decide(epoch, marks.get(grant.key), grant)
            except Refusal as refusal:
                yield refusal.code
                continue
            if grant.epoch > epoch:
                epoch, marks = grant.epoch, {}
            marks[grant.key] = (grant.token, grant.session)
            yield result

    for case in vectors["cases"]:
        print("%s: %s" % (case["name"], answer(case)))
    for history in vectors["histories"]:
        print("%s: %s" % (history["name"], " ".join(steps(history))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--vectors"] and len(sys.argv) == 3:
        run_vectors(sys.argv[2])
    elif len(sys.argv) == 5:
        try:
            print(Verifier(sys.argv[2], [sys.argv[1]]).verify(sys.argv[3], sys.argv[4]))
        except Refusal as error:
            sys.exit("refused (%s): %s" % (error.code, error))
    else:
        sys.exit("usage: palisade_fence.py ROOT CLUSTER KEY SIGNED | --vectors FILE")
