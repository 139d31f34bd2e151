//! Streams of server-sent events, read by hand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::description::{self, Request, Seen, description};
use super::http::{self, Response};

/// An open stream of events.
pub struct Events {
    reader: BufReader<TcpStream>,
    /// What has come of the body and is not read yet.
    rest: String,
    /// What the head has shown of the description.
    pub seen: Option<Seen>,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its ID, if it has one.
    pub id: Option<String>,
    /// Its name.
    pub name: String,
    /// Its content.
    pub data: Value,
}

impl Events {
    /// `GET /v1/watch` with this query, which must be served.
    pub fn open(address: &str, query: &str) -> Events {
        Events::try_open(address, query).unwrap_or_else(|refusal| panic!("{refusal:?}"))
    }

    /// The same; or what the node answers instead.
    pub fn try_open(address: &str, query: &str) -> Result<Events, Response> {
        Events::over(TcpStream::connect(address).expect("the node accepts connections"), query, None)
    }

    /// The same as a browser that reconnects.
    pub fn resume(address: &str, query: &str, last: &str) -> Events {
        let stream = TcpStream::connect(address).expect("the node accepts connections");
        Events::over(stream, query, Some(last)).unwrap_or_else(|refusal| panic!("{refusal:?}"))
    }

    /// The same over this connection.
    pub fn over(mut stream: TcpStream, query: &str, last: Option<&str>) -> Result<Events, Response> {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let last = last.map_or_else(String::new, |last| format!("Last-Event-ID: {last}\r\n"));
        let request = format!("GET /v1/watch?{query} HTTP/1.1\r\nHost: localhost\r\n{last}\r\n");
        stream.write_all(request.as_bytes()).expect("the node reads");
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).expect("the node answers"), 0, "the head ended early: {head}");
        }
        let answer = http::parse(head.as_bytes()).expect("an HTTP response");
        if answer.status == 200 {
            assert_eq!(answer.header("content-type"), Some("text/event-stream"));
            assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
            let seen = description::check(Request::parse(request.as_bytes()), &answer);
            return Ok(Events { reader, rest: String::new(), seen });
        }
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("the answer has a body");
        let answer = Response { body: String::from_utf8(body).unwrap(), ..answer };
        description::check(Request::parse(request.as_bytes()), &answer);
        Err(answer)
    }

    /// The next event; `None` when the node has ended the stream, or the connection broke.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            let Some((text, rest)) = self.rest.split_once("\n\n") else {
                let chunk = self.chunk()?;
                self.rest += &chunk;
                continue;
            };
            let event = parse(text);
            self.rest = rest.to_owned();
            if event.is_some() {
                return event;
            }
        }
    }

    /// How long the next reads wait for something to come.
    pub fn patience(&self, patience: Duration) {
        self.reader.get_ref().set_read_timeout(Some(patience)).unwrap();
    }

    /// The next event, which has this name.
    #[track_caller]
    pub fn expect(&mut self, name: &str) -> Event {
        let event = self.next().expect("the stream goes on");
        assert_eq!(event.name, name, "{event:?}");
        event
    }

    /// The listing with which a watch begins, in one part. Returns the ID with which it is resumed.
    #[track_caller]
    pub fn listing(&mut self) -> (String, Value) {
        let listing = self.expect("listing");
        assert_eq!((&listing.data["begins"], &listing.data["complete"]), (&true.into(), &true.into()));
        (listing.id.expect("a complete listing has an ID"), listing.data["locks"].clone())
    }

    fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let length = usize::from_str_radix(line.trim(), 16).expect("a chunk has a length");
        if length == 0 {
            return None;
        }
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        chunk.truncate(length);
        Some(String::from_utf8(chunk).expect("events are UTF-8"))
    }
}

/// An event, unless the text is a comment.
fn parse(text: &str) -> Option<Event> {
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned);
    let (name, data) = (field("event")?, field("data").expect("an event has data"));
    let data: Value = serde_json::from_str(&data).expect("the data is JSON");
    let described = match name.as_str() {
        "listing" => "Listing",
        "compacted" => "Compacted",
        "end" => "Failure",
        _ => {
            assert_eq!(data["event"], name.as_str(), "{data}");
            "Event"
        }
    };
    description().message(described, &data).unwrap_or_else(|problem| panic!("event {name}: {problem}"));
    Some(Event { id: field("id"), name, data })
}
