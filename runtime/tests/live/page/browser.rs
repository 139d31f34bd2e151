//! A real browser: headless Chromium, which `chromedriver` drives over WebDriver, that is JSON over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::support::https::block_on;
use crate::support::process::Running;
use crate::support::{eventually, ports};

/// Names the driver; otherwise it is looked for in PATH.
const DRIVER: &str = "PALISADE_CHROMEDRIVER";

/// How WebDriver names an element in its answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys, as WebDriver writes them.
pub(super) const TAB: &str = "\u{e004}";
pub(super) const ENTER: &str = "\u{e007}";
pub(super) const ESCAPE: &str = "\u{e00c}";

/// Three browsers run at a time: each has more threads that compute than a small machine has cores, and a page whose
/// requests time out is not what these tests are about.
static TURNS: Semaphore = Semaphore::const_new(3);

/// A window of a browser. Both processes, and what they have written, end with it.
pub(super) struct Browser {
    driver: Running,
    address: String,
    session: String,
    _directory: tempfile::TempDir,
    _turn: SemaphorePermit<'static>,
}

impl Browser {
    /// Starts a browser; `None`, and a line about it, if this machine has no driver.
    pub(super) fn start() -> Option<Browser> {
        let turn = block_on(TURNS.acquire()).expect("it is never closed");
        let named = std::env::var_os(DRIVER);
        let program = named.clone().unwrap_or_else(|| "chromedriver".into());
        let directory = tempfile::tempdir().unwrap();
        let port = ports::free(1)[0];
        let started = Command::new(&program)
            .arg(format!("--port={port}"))
            // The profile of the browser is there, too.
            .env("TMPDIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let driver = match started {
            Ok(process) => Running(process),
            Err(error) if named.is_none() => {
                eprintln!("SKIPPED: no chromedriver in PATH ({error}); {DRIVER} names one");
                return None;
            }
            Err(error) => panic!("cannot start {}, which {DRIVER} names: {error}", program.display()),
        };
        let address = format!("127.0.0.1:{port}");
        eventually("the driver answers", || exchange(&address, "GET", "/status", &Value::Null).ok());
        let mut browser = Browser { driver, address, session: String::new(), _directory: directory, _turn: turn };
        browser.session = browser.new_session();
        Some(browser)
    }

    fn new_session(&self) -> String {
        // A test runs in a container, often as root, where the browser's own sandbox does not work.
        let options = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--lang=en"];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "acceptInsecureCerts": true,
            "goog:chromeOptions": { "args": options },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let (status, answer) = exchange(&self.address, "POST", "/session", &wanted).expect("the driver answers");
        let session = answer["value"]["sessionId"].as_str().map(str::to_owned);
        session.unwrap_or_else(|| panic!("the driver starts no browser: {status} {answer}"))
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value, Value> {
        let path = format!("/session/{}{path}", self.session);
        let (status, answer) = exchange(&self.address, method, &path, body).expect("the driver answers");
        if status == 200 { Ok(answer["value"].clone()) } else { Err(answer["value"].clone()) }
    }

    #[track_caller]
    fn done(&self, path: &str, body: &Value) -> Value {
        self.command("POST", path, body).unwrap_or_else(|why| panic!("{path} {body}: {why}"))
    }

    /// Opens a page.
    pub(super) fn open(&self, url: &str) {
        self.done("/url", &json!({ "url": url }));
    }

    /// What a function without a name returns: `script` is its body.
    pub(super) fn run(&self, script: &str, arguments: &[&str]) -> Value {
        self.done("/execute/sync", &json!({ "script": script, "args": arguments }))
    }

    /// Whether the elements of a selector, if there are any, have a text in them that a person can see.
    pub(super) fn shows(&self, selector: &str, text: &str) -> bool {
        self.texts(selector).iter().any(|shown| shown.contains(text))
    }

    /// The texts that a person can see in the elements of a selector.
    pub(super) fn texts(&self, selector: &str) -> Vec<String> {
        let script = "return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => e.innerText)";
        serde_json::from_value(self.run(script, &[selector])).expect("a list of texts")
    }

    /// Waits until an element of the selector has the text.
    #[track_caller]
    pub(super) fn wait_for(&self, selector: &str, text: &str) {
        eventually(&format!("{selector} shows {text:?}"), || self.shows(selector, text).then_some(()));
    }

    /// Waits until no element of the selector has the text.
    #[track_caller]
    pub(super) fn wait_gone(&self, selector: &str, text: &str) {
        eventually(&format!("{selector} no longer shows {text:?}"), || (!self.shows(selector, text)).then_some(()));
    }

    /// Clicks on an element, as soon as there is one that can be clicked on.
    #[track_caller]
    pub(super) fn click(&self, selector: &str) {
        eventually(&format!("{selector} can be clicked on"), || {
            let element = self.element(selector)?;
            self.command("POST", &format!("/element/{element}/click"), &json!({})).ok()
        });
    }

    /// Types into an element.
    #[track_caller]
    pub(super) fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector).unwrap_or_else(|| panic!("there is no {selector}"));
        self.done(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    fn element(&self, selector: &str) -> Option<String> {
        let found = self.command("POST", "/element", &json!({ "using": "css selector", "value": selector })).ok()?;
        found[ELEMENT].as_str().map(str::to_owned)
    }

    /// Presses keys one after the other.
    pub(super) fn press(&self, keys: &[&str]) {
        let pressed: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        self.done("/actions", &json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": pressed }] }));
    }

    /// The element that has the focus: its ID, or else its text.
    pub(super) fn focus(&self) -> String {
        let script = "const e = document.activeElement; return e.id || e.innerText";
        self.run(script, &[]).as_str().unwrap_or_default().to_owned()
    }

    /// A screen of this size, on which a person prefers dark or light pages.
    pub(super) fn resize(&self, (width, height): (u32, u32), scheme: &str) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 600 });
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        for (command, parameters) in
            [("Emulation.setDeviceMetricsOverride", screen), ("Emulation.setEmulatedMedia", scheme)]
        {
            self.done("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
        }
    }

    /// A picture of what is seen, as PNG.
    pub(super) fn picture(&self) -> Vec<u8> {
        let encoded = self.command("GET", "/screenshot", &Value::Null).expect("a picture");
        STANDARD.decode(encoded.as_str().expect("a text")).expect("base64")
    }

    /// Expects that the page has broken none of its own rules and had no error. Answers that were refusals
    /// are logged by the browser as well, and are the test's affair.
    #[track_caller]
    pub(super) fn expect_no_errors(&self) {
        let log = self.done("/se/log", &json!({ "type": "browser" }));
        let is_error = |entry: &&Value| entry["level"] == "SEVERE" && entry["source"] != "network";
        let errors: Vec<&Value> = log.as_array().expect("a list").iter().filter(is_error).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = exchange(&self.address, "DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ = kill_process_group(self.driver.pid(), Signal::KILL);
    }
}

/// One request to the driver. It keeps connections open whatever it is asked, so the answer ends where
/// its length says.
fn exchange(address: &str, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest.get(..3).and_then(|code| code.parse().ok()).unwrap_or_default();
        } else if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
    }
    let mut answer = vec![0; length];
    reader.read_exact(&mut answer)?;
    Ok((status, serde_json::from_slice(&answer).unwrap_or_default()))
}
