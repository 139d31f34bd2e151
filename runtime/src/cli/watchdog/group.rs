//! Tells whether a command or any process of its process group is alive.
//!
//! The command is the process that began the group: its ID is the group's. It counts even if it has
//! moved to another group.

use std::time::Duration;

use palisade_client::BootInstant;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process, test_kill_process_group};

/// How often a group is checked: the first pause, and the longest.
const POLL_INTERVALS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// Waits until all processes of the group are dead. Returns false if one is still alive after this
/// time.
pub(super) fn is_dead_within(group: Pid, time: Duration) -> bool {
    let deadline = BootInstant::now() + time;
    let [mut interval, longest] = POLL_INTERVALS;
    while is_alive(group) {
        if BootInstant::now() >= deadline {
            return false;
        }
        std::thread::sleep(interval);
        interval = (2 * interval).min(longest);
    }
    true
}

/// Whether the group may have a process that can still act. In doubt it has.
///
/// The system counts a zombie (dead, and not yet waited for by its parent) as a member of its
/// group, and in many containers nothing waits for orphans: `/proc` tells zombies apart.
fn is_alive(group: Pid) -> bool {
    match (test_kill_process_group(group), test_kill_process(group)) {
        (Err(Errno::SRCH), Err(Errno::SRCH)) => false,
        (Ok(()), _) | (_, Ok(())) => has_living_member(group).unwrap_or(true),
        // Every member belongs to another user.
        (Err(_), Err(_)) => true,
    }
}

/// Looks for a living member in `/proc`; `None` if it does not show every process.
fn has_living_member(group: Pid) -> Option<bool> {
    // A /proc that hides other users' processes (hidepid) hides the first one.
    std::fs::read("/proc/1/stat").ok()?;
    for entry in std::fs::read_dir("/proc").ok()? {
        let name = entry.ok()?.file_name();
        if name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
            // A process that ended meanwhile has no file.
            && let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", name.display()))
            && is_living_member(&stat, group)?
        {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether the process of this `/proc/PID/stat` is the command or in its group, and alive; `None` if
/// the text has another form.
fn is_living_member(stat: &str, group: Pid) -> Option<bool> {
    // The program's name stands in parentheses and may contain any character.
    let (pid, (_, rest)) = (stat.split_once(" (")?.0, stat.rsplit_once(')')?);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ids = [pid, fields.get(2)?].map(|id| id.parse() == Ok(group.as_raw_nonzero().get()));
    let state = *fields.first()?;
    // The main thread of a process can be dead while others still run.
    let threads = fields.get(17)?.parse::<u32>().ok()?;
    let is_dead = matches!(state, "Z" | "X") && threads <= 1;
    Some(ids.contains(&true) && !is_dead)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// Goal: a group is alive while one of its processes runs, and not when all are dead, although
    /// nothing has waited for a dead one.
    #[test]
    fn zombies_are_dead() {
        let script = "sleep 1000 & echo $!; exit 0";
        let mut leader =
            Command::new("sh").args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let group = Pid::from_child(&leader);
        let mut stdout = std::io::BufReader::new(leader.stdout.take().unwrap());
        let mut child = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut child).unwrap();
        let until = |wanted: &str| {
            while !std::fs::read_to_string(format!("/proc/{}/stat", leader.id())).unwrap().contains(wanted) {
                std::thread::sleep(POLL_INTERVALS[0]);
            }
        };
        until(") Z ");
        assert!(!is_dead_within(group, Duration::from_millis(300)), "the sleeping child is alive");
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        assert!(is_dead_within(group, Duration::from_secs(30)), "all members are killed");
        assert!(test_kill_process_group(group).is_ok(), "the leader is still a zombie");
        leader.wait().unwrap();
        assert!(!is_alive(group), "the group is gone");
    }

    /// Goal: a process whose main thread is dead is alive while another thread runs; a name cannot
    /// disguise a process.
    #[test]
    fn stat_is_read_exactly() {
        let group = Pid::from_raw(42).unwrap();
        let stat = |state: &str, group: u32, threads: u32| {
            format!("43 (a) Z 1 7 (b) {state} 1 {group} 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0")
        };
        assert_eq!(is_living_member(&stat("S", 42, 1), group), Some(true));
        assert_eq!(is_living_member(&stat("Z", 42, 2), group), Some(true));
        assert_eq!(is_living_member(&stat("Z", 42, 1), group), Some(false));
        assert_eq!(is_living_member(&stat("S", 41, 1), group), Some(false));
        assert_eq!(is_living_member(&stat("S", 41, 1).replacen("43", "42", 1), group), Some(true), "the command");
        assert_eq!(is_living_member("43 (a", group), None);
    }
}
