//! TypeScript: the client's README. The examples have no types, so Node.js runs them as they are.

use std::process::Command;

use super::{Wrapper, programs, succeeds};
use crate::clients::{Kind, folder, unless_missing};
use crate::support::cluster::Cluster;

/// A resource that notes the headers of what it is sent.
const RESOURCE: &str = r#"
import http from "node:http";
const seen = [];
const server = http.createServer((request, response) => {
  seen.push(request.headers["x-fence-token"]);
  response.end();
});
await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
const [report, body] = [`http://127.0.0.1:${server.address().port}/`, "x"];
"#;

const RESOURCE_AFTER: &str = r#"
if (seen.length !== 1 || !(Number(seen[0]) > 0)) throw new Error(`the resource has seen ${seen}`);
process.exit(0);
"#;

const CLIENT: &str = r#"
import { Client } from "palisade-lock";
const client = new Client("127.0.0.1:7401,7402,7403");
"#;

/// A database: SQLite in a process of Python, whose placeholders may be `$1`, too.
const DATABASE: &str = r#"
import { execFileSync } from "node:child_process";
const code = `
import json, sqlite3, sys
connection = sqlite3.connect("report.db")
values = json.loads(sys.argv[2])
found = connection.execute(sys.argv[1], {str(n + 1): value for n, value in enumerate(values)})
names = [column[0] for column in found.description or []]
rows = [dict(zip(names, row)) for row in found.fetchall()]
connection.commit()
print(json.dumps({"rows": rows, "rowCount": len(rows) if names else found.rowcount}))
`;
const db = {
  query: async (statement, values = []) =>
    JSON.parse(execFileSync(process.env.PYTHON, ["-c", code, statement, JSON.stringify(values)])),
};
const check = (holds) => { if (!holds) throw new Error("it does not hold"); };
await db.query("DROP TABLE IF EXISTS report");
await db.query("CREATE TABLE report (name TEXT, body TEXT, fence INTEGER)");
await db.query("INSERT INTO report VALUES ('nightly', 'old', 0)");
const [lock, body] = [{ token: 17 }, "new"];
"#;

const WRAPPERS: &[Wrapper] = &[
    Wrapper { begins: "import { Client } from \"palisade-lock\";", before: RESOURCE, after: RESOURCE_AFTER },
    Wrapper {
        begins: "const lock = await client.lock(\"nightly\"",
        before: CLIENT,
        after: "if (lock.isValid) throw new Error(\"it is released\");\nprocess.exit(0);",
    },
    Wrapper {
        begins: "const { rowCount } = await db.query(",
        before: DATABASE,
        after: "const stored = (await db.query(\"SELECT body, fence FROM report\")).rows[0];\n\
                check(stored.body === \"new\" && stored.fence === 17);\n\
                const late = await db.query(\n\
                \"UPDATE report SET body = $1, fence = $2 WHERE name = 'nightly' AND fence <= $2\", [\"late\", 16]);\n\
                check(late.rowCount === 0);",
    },
    Wrapper {
        begins: "await db.query(\"UPDATE report SET fence = $1",
        before: DATABASE,
        after: "check(rows.length === 1 && rows[0].body === \"old\");",
    },
    Wrapper {
        begins: "const token = Number(request.headers[\"x-fence-token\"]);",
        before: "let highest = 0;\nconst respond = (status) => status;\nfunction put(request) {",
        after: "return 200;\n}\nconst ask = (token) => put({ headers: { \"x-fence-token\": token } });\n\
                const answers = [ask(\"7\"), ask(\"7\"), ask(\"6\"), ask(undefined), ask(\"8\")].join();\n\
                if (answers !== \"200,200,409,409,200\") throw new Error(answers);",
    },
    Wrapper {
        begins: "const lock = await client.lock(\"reports\"",
        before: CLIENT,
        after: "if (report.text() !== \"page 1, page 2\") throw new Error(report.text());\n\
                if (report.version !== second || report.fence !== lock.token) throw new Error(`${report.version}`);\n\
                process.exit(0);",
    },
    Wrapper {
        begins: "const changes = [{ put:",
        before: "import { Client, OtherVersion } from \"palisade-lock\";\n\
                 const client = new Client(\"127.0.0.1:7401,7402,7403\");\n\
                 const lock = await client.lock(\"job\");\n\
                 const version = await client.records.put(\"state\", \"begun\");",
        after: "if ((await client.records.get(\"state\")).text() !== \"done\") throw new Error(\"not done\");\n\
                const again = await client.records.transact(changes, conditions).catch((error) => error);\n\
                if (!(again instanceof OtherVersion)) throw again;\n\
                await lock.release();\nprocess.exit(0);",
    },
    Wrapper {
        begins: "const view = await client.show(",
        before: "import { Client } from \"palisade-lock\";\n\
                 const client = new Client(\"127.0.0.1:7401,7402,7403\");\n\
                 const lock = await client.lock([\"jobs/1\", \"jobs/2\", \"nightly\"]);",
        after: "if (view.holders[0].token !== lock.token) throw new Error(\"the lock is not shown\");\n\
                if (page.locks.map(({ key }) => key).join() !== \"jobs/1,jobs/2\") throw new Error(\"not listed\");\n\
                await lock.release();\nprocess.exit(0);",
    },
    Wrapper {
        begins: "for await (const event of client.watch(",
        before: "import { Client } from \"palisade-lock\";\n\
                 const client = new Client(\"127.0.0.1:7401,7402,7403\");\n\
                 const kinds = [];\n\
                 const isEnough = ({ kind, key }) => {\n\
                 if (key !== undefined && key !== \"jobs/3\") return false; // of an earlier example: a node may lag\n\
                 if (kind === \"listing\") client.withLock(\"jobs/3\", () => client.records.put(\"jobs/3\", \"x\"));\n\
                 kinds.push(kind);\n\
                 return kind === \"released\";\n\
                 };",
        after: "if (kinds.join() !== \"listing,granted,put,released\") throw new Error(kinds.join());",
    },
];

#[test]
fn typescript_examples_run_as_printed() {
    unless_missing(Kind::TypeScript.program(), |_| {
        let cluster = Cluster::start_calm(3);
        let directory = tempfile::tempdir().unwrap();
        let modules = directory.path().join("node_modules");
        std::fs::create_dir(&modules).unwrap();
        std::os::unix::fs::symlink(folder("typescript"), modules.join("palisade-lock")).unwrap();
        for (block, program) in programs("ts", WRAPPERS, &cluster) {
            let file = directory.path().join("example.mjs");
            std::fs::write(&file, program).unwrap();
            let python = std::env::var_os("PALISADE_PYTHON").unwrap_or_else(|| "python3".into());
            succeeds(&block, Command::new("node").arg(&file).current_dir(directory.path()).env("PYTHON", python));
        }
    });
}
