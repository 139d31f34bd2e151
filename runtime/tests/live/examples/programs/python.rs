//! Python: `README.md`, the client's, and the recipes of docs/fencing.md.

use std::process::Command;

use super::{Wrapper, programs, succeeds};
use crate::clients::{folder, python, unless_missing};
use crate::support::cluster::Cluster;

/// Runs a file whose top level may have `await` and `async with`.
const RUNNER: &str = r#"
import ast, asyncio, inspect, sys
code = compile(open(sys.argv[1]).read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
ended = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(ended):
    asyncio.run(ended)
"#;

const REPORT: &str = r#"
import palisade
tokens = []
def write_report(fence):
    tokens.append(fence)
"#;

const WRITTEN: &str = "assert len(tokens) == 1 and tokens[0] > 0, tokens";

/// A database whose placeholders are `%s`, as those of PostgreSQL's clients.
const DATABASE: &str = r#"
import palisade, sqlite3
client = palisade.Client("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403")
class Connection(sqlite3.Connection):
    def execute(self, statement, values=()):
        return super().execute(statement.replace("%s", "?"), values)
connection = sqlite3.connect(":memory:", factory=Connection)
connection.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT, fence INTEGER)")
connection.execute("INSERT INTO report VALUES (7, 'old', 0)")
connection.commit()
body, report_id = "new", 7
"#;

const DATABASE_AFTER: &str = r#"
[(stored, fence)] = connection.execute("SELECT body, fence FROM report").fetchall()
assert (stored, fence) == ("new", lock.token), (stored, fence)
connection.execute("UPDATE report SET fence = fence + 1000")
connection.commit()
try:
    with client.lock("report", wait=60) as lock, connection:
        cursor = connection.execute(
            "UPDATE report SET body = %s, fence = %s WHERE id = %s AND fence <= %s", ("late", lock.token, 7, lock.token)
        )
        assert cursor.rowcount == 0
finally:
    assert connection.execute("SELECT body FROM report").fetchall() == [("new",)]
"#;

/// A lock that another program takes and releases, again and again.
const WATCHED: &str = r#"
import os, palisade, threading, traceback
client = palisade.Client("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403")
enough = threading.Event()
def hold():
    try:
        while not enough.is_set():
            with client.lock("nightly", wait=60):
                pass
    except BaseException:
        # The example would wait for a grant for ever.
        traceback.print_exc()
        os._exit(1)
holder = threading.Thread(target=hold, daemon=True)
holder.start()
"#;

/// What `requests` does with these arguments, so that the package is not needed.
const REQUESTS: &str = r#"
import palisade
client = palisade.Client("127.0.0.1:7401")
class requests:
    sent = []
    @classmethod
    def put(cls, url, data, headers):
        cls.sent.append((url, data, headers))
body = "x"
lock = client.lock("nightly")
lock.acquire()
"#;

const REQUESTS_AFTER: &str = r#"
assert requests.sent == [("https://reports.example/nightly", "x", {"X-Fence-Token": str(lock.token)})], requests.sent
lock.release()
"#;

const SERVER_OF_THE_CLIENT: &str = r#"
import contextlib, types
class Response:
    def __init__(self, status):
        self.status = status
row = types.SimpleNamespace(fence=0, body=None)
class store:
    @staticmethod
    @contextlib.contextmanager
    def transaction():
        yield row
"#;

const SERVER_OF_THE_CLIENT_AFTER: &str = r#"
def ask(token, body):
    return put(types.SimpleNamespace(headers={"X-Fence-Token": str(token)}, body=body))
assert ask(2, "second") is None and row.body == "second"
assert ask(1, "late").status == 409 and row.body == "second"
assert ask(3, "third") is None and (row.body, row.fence) == ("third", 3)
"#;

/// docs/fencing.md: a row of a database.
const ROW: &str = r#"
import sqlite3
connection = sqlite3.connect(":memory:")
connection.execute("CREATE TABLE report (name TEXT PRIMARY KEY, body TEXT, fence INTEGER)")
connection.execute("INSERT INTO report VALUES ('nightly', 'a', 0)")
connection.commit()
"#;

const ROW_AFTER: &str = r#"
def content():
    return connection.execute("SELECT body, fence FROM report").fetchone()
def refused(write):
    try:
        write()
    except StaleToken:
        return True
put_report(connection, 7, "b")
put_report(connection, 7, "c")
assert content() == ("c", 7), content()
assert refused(lambda: put_report(connection, 6, "late")) and content() == ("c", 7), content()
add_to_report(connection, 9, "d")
assert content() == ("cd", 9), content()
assert refused(lambda: add_to_report(connection, 8, "late")) and content() == ("cd", 9), content()
# Another holder comes between the read and the write.
class Interrupted:
    def __init__(self, between):
        self.between = between
    def __enter__(self):
        return connection.__enter__()
    def __exit__(self, *why):
        return connection.__exit__(*why)
    def execute(self, statement, values=()):
        found = connection.execute(statement, values)
        if statement.startswith("SELECT"):
            row = found.fetchone()
            found = type("Read", (), {"fetchone": lambda self: row})()
            self.between()
        return found
# A later one: this write is refused.
later = Interrupted(lambda: add_to_report(connection, 11, "e"))
assert refused(lambda: add_to_report(later, 10, "late")) and content() == ("cde", 11), content()
# An earlier one: that write is refused, because this holder has shown its token before it read.
answers = []
earlier = Interrupted(lambda: answers.append(refused(lambda: put_report(connection, 12, "late"))))
add_to_report(earlier, 13, "f")
assert answers == [True] and content() == ("cdef", 13), (answers, content())
"#;

/// docs/fencing.md: an HTTP service.
const SERVICE: &str = r#"
import http.client, http.server, sqlite3, threading
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE report (name TEXT PRIMARY KEY, body BLOB, fence INTEGER)")
database.commit()
"#;

const SERVICE_AFTER: &str = r#"
Reports.log_message = lambda *_: None
server = http.server.HTTPServer(("127.0.0.1", 0), Reports)
threading.Thread(target=server.serve_forever, daemon=True).start()
def put(token, body):
    connection = http.client.HTTPConnection(*server.server_address)
    headers = {} if token is None else {"X-Fence-Token": str(token)}
    connection.request("PUT", "/nightly", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status
def content():
    return database.execute("SELECT body, fence FROM report").fetchall()
assert put(None, b"x") == 428 and put("none", b"x") == 428 and content() == []
assert put(7, b"a") == 204 and put(7, b"b") == 204 and content() == [(b"b", 7)], content()
assert put(6, b"late") == 409 and content() == [(b"b", 7)], content()
assert put(8, b"c") == 204 and content() == [(b"c", 8)], content()
server.shutdown()
"#;

/// docs/fencing.md: an object store, with the conditions of S3.
const OBJECTS: &str = r#"
import hashlib, http.client, http.server, threading
class StaleToken(Exception):
    pass
objects, interruption = {}, []
class Store(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_):
        pass
    def tag(self):
        held = objects.get(self.path)
        return None if held is None else '"' + hashlib.md5(held).hexdigest() + '"'
    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.tag():
            self.send_header("ETag", self.tag())
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200 if self.tag() else 404, objects.get(self.path, b""))
        if interruption:
            objects[self.path] = interruption.pop()
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        expected, none = self.headers["If-Match"], self.headers["If-None-Match"]
        if none == "*" and self.tag() or expected is not None and expected != self.tag():
            return self.answer(412)
        assert none or expected, "a put without a condition"
        objects[self.path] = body
        self.answer(200)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
store = http.client.HTTPConnection(*server.server_address)
"#;

const OBJECTS_AFTER: &str = r#"
def refused(token, body):
    try:
        put_object(store, "/report", token, body)
    except StaleToken:
        return True
put_object(store, "/report", 7, b"a")
put_object(store, "/report", 7, b"b")
assert objects == {"/report": b"7\nb"}, objects
assert refused(6, b"late") and objects == {"/report": b"7\nb"}, objects
# Another writer comes between the look and the put: an earlier holder's is replaced, a later one's stays.
interruption.append(b"7\nbetween")
put_object(store, "/report", 8, b"c")
assert objects == {"/report": b"8\nc"}, objects
interruption.append(b"10\nd")
assert refused(9, b"late") and objects == {"/report": b"10\nd"}, objects
"#;

const WRAPPERS: &[Wrapper] = &[
    Wrapper { begins: "client = palisade.Client(\"127.0.0.1:7401,", before: REPORT, after: WRITTEN },
    Wrapper { begins: "import palisade\n", before: REPORT, after: WRITTEN },
    Wrapper {
        begins: "with client.lock(\"nightly\", ttl=30, wait=60) as lock:\n    for page",
        before: "import palisade\nclient = palisade.Client(\"127.0.0.1:7401\")\npages, headed = [1, 2], []\n\
                 def write(page, headers):\n    headed.append(headers)\n",
        after: "assert headed == 2 * [{\"X-Fence-Token\": str(lock.token)}], headed",
    },
    Wrapper {
        begins: "with client.lock(\"nightly\", ttl=30, wait=60) as lock:\n    try:",
        before: "import palisade\nclient = palisade.Client(\"127.0.0.1:7401\")\npages = [\"one\", \"two\"]",
        after: "record = client.records.get(\"report\")\n\
                assert (record.text, record.version, record.fence) == (\"two\", version, lock.token), record",
    },
    Wrapper {
        begins: "from palisade import Append, IfVersion, Put",
        before: "import palisade\nclient = palisade.Client(\"127.0.0.1:7401\")\nlock = client.lock(\"nightly\").acquire()\n\
                 version = client.records.put(\"state\", \"begun\", lock=lock)",
        after: "state, log = client.records.get(\"state\"), client.records.get(\"log\")\n\
                assert (state.text, state.version, log.text) == (\"done\", log.version, \"report is written\\n\"), (state, log)\n\
                lock.release()",
    },
    Wrapper {
        begins: "shown = client.show(",
        before: "import palisade\nclient = palisade.Client(\"127.0.0.1:7401\")\nlock = client.lock([\"jobs/1\", \"nightly\"]).acquire()",
        after: "assert shown.holders[0].token == page.locks[0].holders[0].token == lock.token, (shown, page)\nlock.release()",
    },
    Wrapper {
        begins: "from palisade import events",
        before: WATCHED,
        // The next block takes the lock.
        after: "enough.set()\nholder.join()\nassert because == \"request\"",
    },
    Wrapper {
        begins: "import palisade.aio",
        before: "tokens = []\nasync def write_report(fence):\n    tokens.append(fence)\n",
        after: WRITTEN,
    },
    Wrapper { begins: "with client.lock(\"report\", wait=60)", before: DATABASE, after: DATABASE_AFTER },
    Wrapper { begins: "requests.put(", before: REQUESTS, after: REQUESTS_AFTER },
    Wrapper { begins: "def put(request):", before: SERVER_OF_THE_CLIENT, after: SERVER_OF_THE_CLIENT_AFTER },
    Wrapper { begins: "class StaleToken(Exception):", before: ROW, after: ROW_AFTER },
    Wrapper { begins: "class Reports(", before: SERVICE, after: SERVICE_AFTER },
    Wrapper { begins: "def put_object(", before: OBJECTS, after: OBJECTS_AFTER },
];

#[test]
fn python_examples_run_as_printed() {
    unless_missing(python(), |python| {
        let cluster = Cluster::start_calm(3);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("run.py"), RUNNER).unwrap();
        for (block, program) in programs("python", WRAPPERS, &cluster) {
            let file = directory.path().join("example.py");
            std::fs::write(&file, program).unwrap();
            let mut command = Command::new(&python);
            command.arg(directory.path().join("run.py")).arg(&file).current_dir(directory.path());
            succeeds(&block, command.env("PYTHONPATH", folder("python")));
        }
    });
}
