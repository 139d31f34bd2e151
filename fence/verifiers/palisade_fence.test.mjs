// The list of refused keys of palisade_fence.mjs. `fence/tests/vectors` runs these tests with cargo; alone:
// node --test fence/verifiers/palisade_fence.test.mjs

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Verifier } from "./palisade_fence.mjs";

const { cases } = JSON.parse(readFileSync(new URL("../vectors.json", import.meta.url), "utf8"));
const stolen = cases.find(({ result }) => result === "refused_key");

const verifierWith = (refused) =>
  new Verifier(stolen.cluster, stolen.roots, { refused, clock: stolen.now === null ? null : () => Number(stolen.now) });

test("a stolen key is refused in either case of its ID", () => {
  for (const ids of [stolen.refused, stolen.refused.map((id) => id.toUpperCase())]) {
    const verifier = verifierWith(ids);
    assert.throws(() => verifier.verify(stolen.key, stolen.signed), { code: "refused_key" });
  }
  assert.equal(verifierWith(undefined).verify(stolen.key, stolen.signed).key, stolen.key);
});

test("a list of refused keys that would match nothing is an error of the caller", () => {
  const [id] = stolen.refused;
  const mistakes = [
    id, [`${id}\n`], [` ${id}`], [`0x${id}`], [id.slice(1)], [`${id}0`], [""], [id, undefined], [[id]], [Buffer.from(id)],
    [BigInt(`0x${id}`)], new Set([id]), { 0: id }, null, 7,
  ];
  for (const refused of mistakes) assert.throws(() => verifierWith(refused), TypeError);
});
