//! Histories survive a round trip through our own format, and are written in Knossos' and Porcupine's.

mod support;

use std::fs;
use std::path::Path;

use palisade_history::{BadHistory, Call, Client, History, Recorder, Refusal, knossos, porcupine};
use support::{Claims, Size, correct};

/// How much faster than the recorder's clock a clock of the service may run, in millionths.
const DRIFT_PPM: u32 = 1_000;

const SIZE: Size =
    Size { clients: 3, keys: 2, operations: 60, ttl_ms: 25, resource: true, operators: true, claims: Claims::All };

fn histories() -> Vec<History> {
    let mut histories: Vec<History> =
        (0..50).map(|seed| History { drift_ppm: DRIFT_PPM, ..correct(seed, SIZE) }).collect();
    for folder in ["bad", "good"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories").join(folder);
        for entry in fs::read_dir(folder).unwrap() {
            let text = fs::read(entry.unwrap().path()).unwrap();
            histories.push(History::read(text.as_slice()).unwrap());
        }
    }
    histories
}

#[test]
fn records_round_trip() {
    for history in histories() {
        let mut lines = Vec::new();
        history.write(&mut lines).unwrap();
        assert_eq!(History::read(lines.as_slice()).unwrap(), history);
    }
}

/// Goal: a process of Knossos runs one operation at a time.
#[test]
fn each_process_of_knossos_runs_one_operation() {
    for history in histories() {
        let mut lines = Vec::new();
        knossos::write(&history, &mut lines).unwrap();
        let mut busy = std::collections::BTreeMap::new();
        for line in String::from_utf8(lines).unwrap().lines() {
            let Some(rest) = line.strip_prefix("{:process ") else { panic!("{line}") };
            let (process, rest) = rest.split_once(", :type :").unwrap();
            let kind = rest.split(',').next().unwrap();
            if process == ":nemesis" {
                continue;
            }
            let was_busy = busy.insert(process.to_string(), kind == "invoke" || kind == "info").unwrap_or(false);
            assert_eq!(was_busy, kind != "invoke", "{line}");
        }
    }
}

#[test]
fn exported_lines_have_the_documented_form() {
    let text = concat!(
        r#"{"type":"history","version":1,"drift_ppm":250}"#,
        "\n",
        r#"{"type":"invoke","op":1,"client":"a","time":5,"call":{"acquire":{"key":"k","session":"s1","number":1,"wait_ms":500}}}"#,
        "\n",
        r#"{"type":"ok","op":1,"time":9,"value":{"granted":{"session":"s1","token":7}}}"#,
        "\n",
        r#"{"type":"invoke","op":2,"client":"b","time":6,"call":{"release":{"key":"k","session":"s2","token":3}}}"#,
        "\n",
        r#"{"type":"fail","op":2,"time":8,"error":"not_holder"}"#,
        "\n",
        r#"{"type":"invoke","op":3,"client":"c","time":10,"call":{"close_session":{"session":"s \"3\""}}}"#,
        "\n",
        r#"{"type":"note","op":3,"time":11,"note":"disconnected"}"#,
        "\n",
        r#"{"type":"info","op":3,"time":12,"why":"lost"}"#,
    );
    let history = History::read(text.as_bytes()).unwrap();
    let written = |write: fn(&History, &mut Vec<u8>) -> std::io::Result<()>| {
        let mut lines = Vec::new();
        write(&history, &mut lines).unwrap();
        String::from_utf8(lines).unwrap().lines().map(String::from).collect::<Vec<_>>()
    };
    let lines = written(|history, into| knossos::write(history, into));
    assert_eq!(
        lines,
        [
            r#"{:process :nemesis, :type :info, :f :history, :value {:drift_ppm 250, :type "history", :version 1}, :time 0, :index 0}"#,
            r#"{:process 0, :type :invoke, :f :acquire, :value ["k" {:number 1, :session "s1", :wait_ms 500}], :time 5, :index 1, :op 1, :client "a"}"#,
            r#"{:process 1, :type :invoke, :f :release, :value ["k" {:session "s2", :token 3}], :time 6, :index 2, :op 2, :client "b"}"#,
            r#"{:process 1, :type :fail, :f :release, :value ["k" {:session "s2", :token 3}], :time 8, :index 3, :op 2, :error "not_holder"}"#,
            r#"{:process 0, :type :ok, :f :acquire, :value ["k" {:granted {:session "s1", :token 7}}], :time 9, :index 4, :op 1}"#,
            r#"{:process 0, :type :invoke, :f :close_session, :value [nil {:session "s \"3\""}], :time 10, :index 5, :op 3, :client "c"}"#,
            r#"{:process :nemesis, :type :info, :f :note, :value {:note "disconnected", :op 3, :time 11, :type "note"}, :time 11, :index 6}"#,
            r#"{:process 0, :type :info, :f :close_session, :value [nil {:session "s \"3\""}], :time 12, :index 7, :op 3, :error "lost"}"#,
        ]
    );
    let lines = written(|history, into| porcupine::write(history, into));
    assert_eq!(
        lines,
        [
            r#"{"Version":1,"DriftPpm":250}"#,
            r#"{"ClientId":0,"Input":{"acquire":{"key":"k","session":"s1","number":1,"wait_ms":500}},"Call":5,"Output":{"ok":{"granted":{"session":"s1","token":7}}},"Return":9,"Op":1,"Client":"a","Notes":[],"End":9}"#,
            r#"{"ClientId":1,"Input":{"release":{"key":"k","session":"s2","token":3}},"Call":6,"Output":{"fail":"not_holder"},"Return":8,"Op":2,"Client":"b","Notes":[],"End":8}"#,
            r#"{"ClientId":0,"Input":{"close_session":{"session":"s \"3\""}},"Call":10,"Output":null,"Return":13,"Op":3,"Client":"c","Notes":[[11,"disconnected"]],"End":12,"Why":"lost"}"#,
        ]
    );
}

#[test]
fn invalid_record_is_rejected_with_line_or_operation() {
    let read = |text: &str| History::read(text.as_bytes()).unwrap_err();
    let invoked = r#"{"type":"invoke","op":1,"client":"a","time":5,"call":{"read":{"key":"k"}}}"#;
    assert!(matches!(read("# words\n{\"type\":\"what\"}"), BadHistory::Line { line: 2, .. }));
    assert!(matches!(read("{\"type\":\"history\",\"version\":2}"), BadHistory::Version(2)));
    let operation = |end: &str| match read(&format!("{invoked}\n{end}")) {
        BadHistory::Operation { op, problem } => (op.0, problem),
        other => panic!("{other}"),
    };
    assert_eq!(operation(invoked), (1, "the operation is invoked twice"));
    let never = r#"{"type":"ok","op":2,"time":9,"value":"closed"}"#;
    assert_eq!(operation(never), (2, "the operation was never invoked"));
    let early = r#"{"type":"ok","op":1,"time":4,"value":{"lock":{"holder":null}}}"#;
    assert_eq!(operation(early), (1, "the completion is earlier than the invocation"));
    let other = r#"{"type":"ok","op":1,"time":9,"value":"released"}"#;
    assert_eq!(operation(other), (1, "the answer does not fit the call"));
    let refused = |call: &str, error: &str| {
        let invoked = format!(r#"{{"type":"invoke","op":1,"client":"a","time":5,"call":{call}}}"#);
        let note = r#"{"type":"note","op":1,"time":6,"note":"disconnected"}"#;
        let text = format!("{invoked}\n{note}\n{{\"type\":\"fail\",\"op\":1,\"time\":9,\"error\":{error}}}");
        History::read(text.as_bytes()).map(|_| ()).map_err(|error| error.to_string())
    };
    let sent_twice = "operation 1: the request was sent more than once, so a refusal is not certain: record an `info`";
    let unnumbered = r#"{"acquire":{"key":"k","session":"s1","wait_ms":20}}"#;
    let numbered = r#"{"acquire":{"key":"k","session":"s1","number":3,"wait_ms":20}}"#;
    assert_eq!(refused(unnumbered, r#""timeout""#).unwrap_err(), sent_twice);
    assert_eq!(refused(numbered, r#""no_session""#).unwrap_err(), sent_twice);
    assert_eq!(refused(numbered, r#"{"not_taken":{"message":"no leader"}}"#).unwrap_err(), sent_twice);
    let release = r#"{"release":{"key":"k","session":"s1","token":1,"number":4}}"#;
    assert_eq!(refused(release, r#""not_holder""#).unwrap_err(), sent_twice);
    assert_eq!(refused(numbered, r#""timeout""#), Ok(()));
    let twice =
        "{\"type\":\"info\",\"op\":1,\"time\":9,\"why\":\"\"}\n{\"type\":\"info\",\"op\":1,\"time\":9,\"why\":\"\"}";
    assert_eq!(operation(twice), (1, "the operation is completed twice"));
}

/// Goal: many tasks record at once, nothing is lost, and a dropped operation is recorded as
/// unknown.
#[test]
fn recorder_keeps_events_of_concurrent_tasks() {
    let recorder = Recorder::in_memory();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let recorder = recorder.clone();
            scope.spawn(move || {
                let client = Client::from(format!("c{number}").as_str());
                for _ in 0..100 {
                    let pending = recorder.invoke(&client, Call::Read { key: "k".into(), stale: false });
                    pending.fail(Refusal::NotTaken { message: "there is no leader".to_string() });
                    drop(recorder.invoke(&client, Call::Access { key: "k".into(), token: 1, reads: false }));
                }
            });
        }
    });
    let history = recorder.history().unwrap();
    assert_eq!(history.operations.len(), 1600);
    let unknown = |call: &Call| matches!(call, Call::Access { .. });
    let never = palisade_history::Time::NEVER;
    assert!(history.operations.iter().all(|operation| (operation.completed() == never) == unknown(&operation.call)));
}

/// Goal: a recorder writes line by line, so that the record outlives its process.
#[test]
fn recorder_writes_a_readable_history_line_by_line() {
    #[derive(Clone, Default)]
    struct Tape(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);
    impl std::io::Write for Tape {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let tape = Tape::default();
    let recorder = Recorder::into_writer(Box::new(tape.clone()));
    let pending = recorder.invoke(&"a".into(), Call::Access { key: "k".into(), token: 1, reads: false });
    let begun = History::read(tape.0.lock().as_slice()).unwrap();
    assert_eq!((begun.operations.len(), &begun.operations[0].end), (1, &None));
    recorder.drift(500);
    pending.info("it broke");
    recorder.finish().unwrap();
    let ended = History::read(tape.0.lock().as_slice()).unwrap();
    assert!(ended.operations[0].end.is_some() && ended.drift_ppm == 500);
}
