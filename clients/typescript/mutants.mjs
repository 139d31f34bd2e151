// Runs the tests on each known bug of mutants.json: `npm run mutants`. Every one of them must make a test fail.

import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL(".", import.meta.url));
const mutants = JSON.parse(readFileSync(join(root, "mutants.json"), "utf8"));
const run = (cwd, ...args) => spawnSync("npm", ["run", "--silent", ...args], { cwd, encoding: "utf8" });
let survivors = 0;

for (const { file, old, new: changed, why } of mutants) {
  const folder = mkdtempSync(join(tmpdir(), "palisade-mutant-"));
  try {
    for (const part of ["src", "test", "adapter.ts", "package.json", "tsconfig.json"]) {
      cpSync(join(root, part), join(folder, part), { recursive: true });
    }
    symlinkSync(join(root, "node_modules"), join(folder, "node_modules"));
    const source = readFileSync(join(folder, file), "utf8");
    if (source.split(old).length !== 2) throw new Error(`${file} has not exactly one place that reads: ${old}`);
    writeFileSync(
      join(folder, file),
      source.replace(old, () => changed),
    );
    const build = run(folder, "build");
    if (build.status !== 0) throw new Error(`the mutant of ${file} does not compile: ${build.stdout}`);
    const test = run(folder, "test");
    const failed = [...test.stdout.matchAll(/^\s+not ok \d+ - (.*)$/gm)].map(([, name]) => name);
    if (failed.length === 0) survivors += 1;
    console.log(`${failed.length === 0 ? "SURVIVED" : "caught"}: ${why}\n  ${failed.join("\n  ")}`);
  } finally {
    rmSync(folder, { recursive: true });
  }
}
console.log(`${mutants.length - survivors} of ${mutants.length} mutants were caught`);
process.exitCode = survivors === 0 ? 0 : 1;
