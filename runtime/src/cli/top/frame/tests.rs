use palisade_client::BootInstant;
use palisade_client::wire::{HolderView, LeaderView, StatusView, WaiterView};

use super::super::keys::Key;
use super::*;

fn status(node: u16, role: &str, applied: u64) -> StatusView {
    StatusView {
        node,
        generation: 0,
        cluster: "0".repeat(16),
        role: role.into(),
        term: 3,
        leader: Some(LeaderView { id: 1, client_addr: None }),
        commit: applied,
        applied,
        cluster_time_ms: 0,
        sessions: 4,
        locks: 2,
        members: Vec::new(),
        snapshot: None,
        version: if node == 2 { "0.1.0" } else { "0.2.0" }.into(),
        disk: DiskView { free_bytes: Some(3 << 29), low: node == 2, ..DiskView::default() },
        cluster_name: "billing\x1b[2J".into(),
        waiting_for: Vec::new(),
    }
}

fn lock(key: &str, waiters: usize) -> LockView {
    let holder = HolderView {
        owner: format!("owner of {key}"),
        session: 7,
        token: 9,
        expires_in_ms: 30_000,
        holds: 1,
        ..HolderView::default()
    };
    let queue = (0..waiters).map(|at| WaiterView { owner: format!("w{at}"), ..WaiterView::default() }).collect();
    LockView { key: key.into(), held: true, holder: Some(holder.clone()), holders: vec![holder], queue }
}

fn view(keys: &[&str]) -> View {
    let answer = |node, status: Option<StatusView>| NodeAnswer {
        endpoint: Some(format!("127.0.0.1:740{node}")),
        node: Some(node),
        error: status.is_none().then(|| "connection refused".to_owned()),
        status,
    };
    let nodes =
        vec![answer(1, Some(status(1, "leader", 120))), answer(2, Some(status(2, "follower", 100))), answer(3, None)];
    let locks = Ok(keys.iter().map(|key| lock(key, 7)).collect());
    let mut view = View::default();
    view.update(Picture { at: BootInstant::now(), nodes, locks, has_more: false });
    view
}

/// Goal: one picture has every node with its lag and its version, the disk that is low, the node that is down, and every
/// lock; nothing in it moves a terminal's cursor.
#[test]
fn whole_picture_names_nodes_and_locks() {
    let lines = whole(&view(&["a", "b"]));
    assert_eq!(lines[0], "cluster billing\\u{1b}[2J  leader node 1  term 3  sessions 4  locks 2");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words(&lines[3]), "1 127.0.0.1:7401 leader 3 120 0 1.5 GiB 0.2.0");
    assert_eq!(words(&lines[4]), "2 127.0.0.1:7402 follower 3 100 20 1.5 GiB LOW 0.1.0");
    assert_eq!(words(&lines[5]), "3 127.0.0.1:7403 unreachable: connection refused");
    assert_eq!(words(&lines[7]), "KEY TOKEN WAITING TTL LEFT HOLDER");
    assert!(words(&lines[8]).starts_with("a 9 7 ") && lines[8].ends_with("owner of a"), "{lines:?}");
    assert_eq!(lines.len(), 10);
}

/// Goal: a node whose status has no version is no row with an empty column.
#[test]
fn missing_version_is_a_dash() {
    let mut view = view(&["a"]);
    view.picture.as_mut().unwrap().nodes[0].status.as_mut().unwrap().version.clear();
    assert!(whole(&view)[3].ends_with("1.5 GiB  -"), "{:?}", whole(&view));
}

/// Goal: a frame never has more lines than the terminal, and the chosen lock is always on it, with its
/// waiters.
#[test]
fn chosen_lock_is_always_shown() {
    let keys: Vec<String> = (0..50).map(|at| format!("key-{at:02}")).collect();
    let mut view = view(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    let chosen = |view: &mut View| {
        let lines = live(view, (20, 80));
        assert_eq!(lines.len(), 20);
        let reversed: Vec<&String> = lines.iter().filter(|line| line.contains(REVERSED)).collect();
        assert_eq!(reversed.len(), 1, "{lines:?}");
        let key = reversed[0].trim_start_matches(REVERSED).split(' ').next().unwrap().to_owned();
        assert_eq!(lines[18], format!("{key}: waiting: w0, w1, w2, w3, w4, and 2 more"));
        key
    };
    assert_eq!(chosen(&mut view), "key-00");
    for (key, expected) in [
        (Key::Up, "key-00"),
        (Key::Down, "key-01"),
        (Key::PageDown, "key-11"),
        (Key::End, "key-49"),
        (Key::Down, "key-49"),
        (Key::PageUp, "key-39"),
        (Key::Home, "key-00"),
    ] {
        assert!(!view.press(key));
        assert_eq!(chosen(&mut view), expected, "{key:?}");
    }
    // A terminal that is too small for anything.
    assert_eq!(live(&mut view, (1, 10)).len(), 1);
}

/// Goal: the filter looks at keys and holders, takes the letters that else are commands, and ends with
/// Escape; then q quits.
#[test]
fn filter_takes_letters_until_it_ends() {
    let mut view = view(&["quick", "slow"]);
    for key in [Key::Letter('/'), Key::Letter('q'), Key::Letter('u'), Key::Backspace] {
        assert!(!view.press(key));
    }
    assert_eq!(view.locks().iter().map(|lock| &lock.key).collect::<Vec<_>>(), ["quick"]);
    assert!(live(&mut view, (24, 80)).last().unwrap().starts_with("/q_"));
    assert!(!view.press(Key::Enter));
    assert!(live(&mut view, (24, 80)).last().unwrap().ends_with("filter: q (1)"));
    assert!(!view.press(Key::Escape));
    assert_eq!(view.locks().len(), 2);
    assert!(view.press(Key::Letter('q')));
}

/// Goal: bars and times shrink with the lease, and units fit the size.
#[test]
fn bars_times_and_sizes() {
    assert_eq!([bar(1.0), bar(0.51), bar(0.0)], ["##########", "######....", ".........."]);
    let times = [1_250, 59_999, 61_000, 7_260_000].map(|ms| seconds(Duration::from_millis(ms)));
    assert_eq!(times, ["1.2s", "59.9s", "1m01s", "2h01m"]);
    assert_eq!([binary(5), binary(1536), binary(3 << 40)], ["5 B", "1.5 KiB", "3.0 TiB"]);
}
