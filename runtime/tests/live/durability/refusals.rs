//! Nodes that do not start: each says why, names the place, and ends with the exit code for it; the
//! others go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::process::refusal;
use crate::support::{http, locks, ports};

/// The disk is not to be trusted, or not this node's.
const STORAGE: i32 = 74;
/// The command line contradicts itself.
const CONFIG: i32 = 78;

/// The one segment of a short log.
fn segment(data: &Path) -> PathBuf {
    data.join(format!("wal-{:020}.log", 1))
}

/// Where the frames of a segment begin: after the first three sectors, one behind the other, until
/// there are only zeros. The format stands in src/storage/frame.rs.
fn frames(segment: &[u8]) -> Vec<usize> {
    let mut frames = vec![];
    let mut at = 1536;
    while let Some([b'P', b'L', b'F', b'R', length @ ..]) = segment.get(at..at + 8) {
        frames.push(at);
        let payload = u32::from_le_bytes(length.try_into().unwrap());
        at += 29 + usize::try_from(payload).unwrap() + 1;
    }
    frames
}

/// Whether the segment has evidence of its last frame, which is written after the frame. The format stands in
/// src/storage/evidence.rs.
fn has_evidence_of_all(segment: &[u8]) -> bool {
    let number = |at: usize| u64::from_le_bytes(segment[at..at + 8].try_into().unwrap());
    let last = frames(segment).pop().unwrap();
    [512, 1024].into_iter().any(|slot| number(slot + 20) == last as u64)
}

/// A calm cluster whose nodes do not come back by themselves when they have lost their logs.
fn stopping() -> Cluster {
    Cluster::start_with(3, &["--election-timeout", "750ms", "--on-damage", "stop"])
}

/// Takes a lock as a client of the whole cluster.
fn take(cluster: &Cluster, key: &str) -> (String, u64) {
    let session = locks::open_session(cluster, "", Duration::from_secs(3600));
    let grant = locks::acquire(cluster, key, session);
    (key.to_string(), grant.token)
}

/// The cluster goes on, and has forgotten none of these.
fn assert_serves(cluster: &Cluster, taken: &mut Vec<(String, u64)>) {
    taken.push(take(cluster, &format!("key-{}", taken.len())));
    for (key, token) in taken {
        let holder = locks::lock(cluster, key).holder.expect("it is held");
        assert_eq!(holder.token, *token, "{key}");
    }
}

/// Takes locks until a segment has frames in its middle. How many entries come in one frame depends on the node.
fn write_frames(cluster: &Cluster, taken: &mut Vec<(String, u64)>, segment: &Path) {
    while frames(&fs::read(segment).unwrap()).len() <= 10 {
        assert!(taken.len() < 100, "there is no middle");
        assert_serves(cluster, taken);
    }
}

/// Starts this node, and the cluster serves with it.
fn assert_returns(cluster: &mut Cluster, node: u16, taken: &mut Vec<(String, u64)>) {
    cluster.restart(node);
    cluster.wait_ready();
    assert_serves(cluster, taken);
}

/// Goal: one bit of one frame in the middle of one node's log has flipped. That node refuses to
/// start, names the file and the frame, and leaves the file as it is; the other two go on without
/// it. With the bit back it starts, and the cluster is whole.
#[test]
fn a_node_whose_log_is_damaged_does_not_start() {
    let (mut cluster, mut taken) = (stopping(), Vec::new());
    // A follower and the leader are alike in this: damage is damage.
    let follower = cluster.wait_ready() % 3 + 1;
    let path = segment(&cluster.data(follower));
    write_frames(&cluster, &mut taken, &path);
    cluster.kill(follower);
    let sound = fs::read(&path).unwrap();
    let frames = frames(&sound);
    let frame = frames[frames.len() / 2];
    // In the frame's payload, its checksum, its sequence number.
    for byte in [frame + 29, frame + 22, frame + 8] {
        let mut damaged = sound.clone();
        damaged[byte] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        for _ in 0..2 {
            let said = refusal(&mut cluster.command(follower), STORAGE);
            let damage = format!("{} is damaged at byte {frame}:", path.display());
            assert!(said.contains(&damage), "{said}");
        }
        assert!(fs::read(&path).unwrap() == damaged, "the damaged file was written to");
        assert_serves(&cluster, &mut taken);
    }
    fs::write(&path, &sound).unwrap();
    assert_returns(&mut cluster, follower, &mut taken);
}

/// Goal: a killed follower's log has lost its end, in ways that leave only sound frames: the file
/// was shortened, or it is zero from a frame on. The node refuses to start, says where and how much
/// is missing, and leaves the file as it is.
#[test]
fn a_node_whose_log_has_lost_its_end_does_not_start() {
    let (mut cluster, mut taken) = (stopping(), Vec::new());
    let follower = cluster.wait_ready() % 3 + 1;
    let path = segment(&cluster.data(follower));
    write_frames(&cluster, &mut taken, &path);
    let sound = loop {
        cluster.kill(follower);
        let log = fs::read(&path).unwrap();
        if has_evidence_of_all(&log) {
            break log;
        }
        // It was killed between the two writes.
        cluster.restart(follower);
        assert_serves(&cluster, &mut taken);
    };
    let frames = frames(&sound);
    for kept in [frames.len() / 2, frames.len() - 1] {
        let end = frames[kept];
        let zeros = [&sound[..end], &vec![0; sound.len() - end]].concat();
        let lost = format!("at least {} frame", frames.len() - kept);
        for (damaged, says) in [(sound[..end].to_vec(), "the file ends here"), (zeros, &lost)] {
            fs::write(&path, &damaged).unwrap();
            let said = refusal(&mut cluster.command(follower), STORAGE);
            assert!(said.contains(&format!("{} is damaged at byte {end}:", path.display())), "{said}");
            assert!(said.contains(says), "{said}");
            assert!(fs::read(&path).unwrap() == damaged, "the damaged file was written to");
        }
        assert_serves(&cluster, &mut taken);
    }
    fs::write(&path, &sound).unwrap();
    assert_returns(&mut cluster, follower, &mut taken);
}

/// Goal: a directory belongs to one node of one cluster with one set of founders, and to no other,
/// whatever the command line names. A node that is refused leaves it as it was: its own node starts
/// from it as if nothing had happened.
#[test]
fn a_data_directory_is_one_nodes_for_ever() {
    let (mut cluster, mut taken) = (stopping(), Vec::new());
    assert_serves(&cluster, &mut taken);
    let node = cluster.wait_ready() % 3 + 1;
    let other = node % 3 + 1;
    cluster.kill(node);
    let identity = cluster.data(node).join("identity.json");
    let refused = |command: &mut Command, complaint: &str| {
        let said = refusal(command, STORAGE);
        assert!(said.contains(&format!("{} {complaint}", identity.display())), "{said}");
    };

    refused(cluster.command(node).args(["--cluster", "elsewhere"]), "belongs to cluster");
    // The other node's own command, but for the directory. It does not run.
    cluster.kill(other);
    let complaint = format!("belongs to node {node}, but this is node {other}.");
    refused(&mut with(&cluster.command(other), "--data", &cluster.data(node).display().to_string()), &complaint);
    cluster.restart(other);
    let [port, another] = ports::free(2)[..] else { unreachable!() };
    let peers = format!("{node}=127.0.0.1:{port},9=127.0.0.1:{another}");
    let complaint = "says that the cluster was founded by [1, 2, 3], but --peers names";
    refused(&mut with(&cluster.command(node), "--peers", &peers), complaint);
    // Founders without this node are wrong in themselves.
    let peers = format!("9=127.0.0.1:{another}");
    let new = tempfile::tempdir().expect("a temporary directory");
    let elsewhere = with(&cluster.command(node), "--data", &new.path().display().to_string());
    let said = refusal(&mut with(&elsewhere, "--peers", &peers), CONFIG);
    assert!(said.contains(&format!("--peers does not name this node: add {node}=")), "{said}");

    assert_returns(&mut cluster, node, &mut taken);
}

/// What a test changes in the content of a file.
type Change<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// Goal: a directory in which a later version has written one file in a new format is refused, whichever file it is, with
/// the file, its format, and the one that this version reads; nothing in it is changed. (What a version reads of the
/// version before is tested with the program of that version, in `upgrade`.)
#[test]
fn a_directory_of_a_later_version_is_refused() {
    let (mut cluster, mut taken) = (stopping(), Vec::new());
    assert_serves(&cluster, &mut taken);
    let node = cluster.wait_ready() % 3 + 1;
    let snapshot = http::post(&cluster.client_addr(node), "/v1/snapshot", "").unwrap().ok();
    let data = cluster.data(node);
    cluster.kill(node);
    let names = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let snapshot_file = names.into_iter().find(|name| name.ends_with(".snap")).expect("a snapshot was taken");
    assert!(snapshot["index"].as_u64() > Some(0));

    let in_json = |bytes: &[u8]| {
        let mut content: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        content["format"] = 99.into();
        content.to_string().into_bytes()
    };
    // The checksum of the header stands at its end.
    let in_header = |bytes: &[u8], sum_at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..sum_at]);
        bytes[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let of_snapshot = |bytes: &[u8]| 24 + u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
    let files: [(PathBuf, &str, Change<'_>); 5] = [
        (data.join("identity.json"), "format 5", &in_json),
        (data.join("start.json"), "format 1", &in_json),
        (data.join("peers.json"), "format 3", &in_json),
        (segment(&data), "format 6", &|bytes| in_header(bytes, 508)),
        (data.join(snapshot_file), "format 6", &|bytes| in_header(bytes, of_snapshot(bytes))),
    ];
    for (path, reads, change) in files {
        let ours = fs::read(&path).unwrap();
        let later = change(&ours);
        fs::write(&path, &later).unwrap();
        let said = refusal(&mut cluster.command(node), STORAGE);
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!("{} is in format 99; this program (Palisade {version}) reads {reads}.", path.display());
        assert!(said.contains(&expected), "{said}");
        assert!(fs::read(&path).unwrap() == later, "the file was written to");
        fs::write(&path, &ours).unwrap();
    }
    assert_returns(&mut cluster, node, &mut taken);
}

/// Goal: while a node runs, no other process opens its directory, also not under other addresses:
/// the second process names the first, and the first is not disturbed.
#[test]
fn a_data_directory_is_used_by_one_process_at_a_time() {
    let (mut cluster, mut taken) = (stopping(), Vec::new());
    assert_serves(&cluster, &mut taken);
    for node in cluster.ids() {
        let [clients, peers] = ports::free(2)[..] else { unreachable!() };
        let elsewhere = with(&cluster.command(node), "--client-addr", &format!("127.0.0.1:{clients}"));
        let mut elsewhere = with(&elsewhere, "--peer-addr", &format!("127.0.0.1:{peers}"));
        let said = refusal(&mut elsewhere, STORAGE);
        let pid = cluster.pid(node).as_raw_nonzero();
        let complaint = format!("{} is in use by process {pid}.", cluster.data(node).display());
        assert!(said.contains(&complaint), "{said}");
        let status = cluster.status(node).expect("the first process answers as before");
        assert_eq!(status.node, node);
    }
    assert_serves(&cluster, &mut taken);
    // The lock goes with its process, however that ends.
    cluster.kill(1);
    assert_returns(&mut cluster, 1, &mut taken);
}

/// The same command with another value for one flag.
fn with(command: &Command, flag: &str, value: &str) -> Command {
    let mut changed = Command::new(command.get_program());
    let mut replace = false;
    for argument in command.get_args() {
        if replace {
            changed.arg(value);
        } else {
            changed.arg(argument);
        }
        replace = argument == flag;
    }
    changed
}

/// Goal: a server never serves from the directory of a stepped node, whose messages a test decided.
#[test]
fn serve_refuses_the_directory_of_a_stepped_node() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("stepper"), "").unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_palisade"));
    serve.args(["serve", "--id", "1", "--client-addr", "127.0.0.1:1", "--peer-addr", "127.0.0.1:1"]);
    let said = refusal(serve.args(["--peers", "1=127.0.0.1:1", "--data"]).arg(directory.path()), CONFIG);
    assert!(said.contains("is the directory of a stepped node"), "{said}");
}
