use std::cell::Cell;

use crossbeam_channel::Sender;

use super::*;

const TTL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);
const START: Duration = Duration::from_secs(1000);

fn at(seconds: u64) -> BootInstant {
    BootInstant::from_boot(START + Duration::from_secs(seconds))
}

fn allowance(until: u64) -> Allowance {
    Allowance { group: Pid::from_raw(4242).unwrap(), until: at(until) }
}

/// A clock whose readings are these moments, one after the other. It stays at the last one; a watch
/// that reads it more than ten times fails.
fn clock_readings(moments: &[u64]) -> impl Fn() -> BootInstant {
    let (moments, next) = (moments.to_vec(), Cell::new(0));
    move || {
        let look = next.replace(next.get() + 1);
        assert!(look < moments.len() + 10, "the watch does not end");
        at(moments[look.min(moments.len() - 1)])
    }
}

fn queued(renewals: &[Allowance]) -> (Sender<Order>, Receiver<Order>) {
    let (sender, orders) = crossbeam_channel::unbounded();
    renewals.iter().for_each(|&renewal| sender.send(Order::Allow(renewal)).unwrap());
    (sender, orders)
}

/// Goal: a renewal that is waiting when the machine resumes after the deadline is ignored. The
/// process may have read the clock before the machine was suspended, and the renewal afterwards:
/// the clock is read again after the renewal.
#[test]
fn renewal_read_after_deadline_is_ignored() {
    for moments in [[3600, 3600].as_slice(), &[5, 5, 3600, 3601], &[5, 5, 26, 30]] {
        let (_sender, allowances) = queued(&[allowance(3620)]);
        let ended = watch(&allowances, allowance(26), 2 * HOUR, clock_readings(moments));
        assert_eq!(ended, End::LeaseOver, "clock readings {moments:?}");
    }
}

/// Goal: each renewal in time extends the deadline.
#[test]
fn renewals_in_time_extend_deadline() {
    let (sender, allowances) = queued(&[allowance(36), allowance(46)]);
    // The second readings of 10 and of 30 follow a renewal.
    assert_eq!(watch(&allowances, allowance(26), TTL, clock_readings(&[0, 10, 10, 30, 30, 45, 46])), End::LeaseOver);
    assert!(allowances.is_empty(), "both were read");
    drop(sender);
    assert_eq!(watch(&allowances, allowance(26), TTL, clock_readings(&[0])), End::ParentKilled);
}

/// Goal: a lock that is handed over ends the watch without a message: `palisade lock` has reported
/// the loss.
#[test]
fn handed_over_lock_ends_watch_silently() {
    let (sender, orders) = queued(&[allowance(36)]);
    sender.send(Order::GiveBack).unwrap();
    drop(sender);
    let end = watch(&orders, allowance(26), TTL, clock_readings(&[0, 10]));
    assert_eq!((end, end.message()), (End::HandedOver, None));
}

/// Goal: implausible renewals are ignored: a deadline further ahead than the TTL, one not after the
/// known deadline, another process group.
#[test]
fn implausible_renewals_are_ignored() {
    let (known, now) = (allowance(26), at(10));
    let other_group = Allowance { group: Pid::from_raw(1).unwrap(), until: at(36) };
    for wrong in [allowance(41), allowance(1_000_000), allowance(26), allowance(25), allowance(0), other_group] {
        assert_eq!(renew(known, wrong, TTL, now), known, "{wrong:?}");
    }
    let farthest = BootInstant::from_boot(Duration::MAX);
    assert_eq!(renew(known, Allowance { until: farthest, ..known }, TTL, now), known);
    assert_eq!(renew(known, allowance(40), TTL, now), allowance(40));
    assert_eq!(renew(known, allowance(40), TTL, at(26)), known, "the renewal is read at the deadline");
}

/// Goal: a command with an implausible first deadline is killed, not left unwatched.
#[test]
fn implausible_first_deadline_kills_at_once() {
    let (_sender, allowances) = queued(&[]);
    assert_eq!(watch(&allowances, allowance(31), TTL, clock_readings(&[0])), End::Implausible);
    assert_eq!(watch(&allowances, allowance(26), TTL, clock_readings(&[3600])), End::LeaseOver);
}

/// Goal: the deadline is parsed to the nanosecond; an invalid line is ignored.
#[test]
fn lines_are_parsed_exactly() {
    let until = BootInstant::from_boot(Duration::new(86_400, 123_456_789));
    let group = Pid::from_raw(4242).unwrap();
    assert_eq!(parse("4242 86400123456789"), Some(Order::Allow(Allowance { group, until })));
    assert_eq!(parse(GIVE_BACK), Some(Order::GiveBack));
    for nonsense in ["", "4242", "4242 ", "0 5", "4242 -5", "x 5", "4242 99999999999999999999999"] {
        assert_eq!(parse(nonsense), None, "{nonsense:?}");
    }
}
