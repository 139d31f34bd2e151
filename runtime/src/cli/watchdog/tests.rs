use std::cell::Cell;

use crossbeam_channel::Sender;

use super::*;

const TTL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);
const START: Duration = Duration::from_secs(1000);

fn at(seconds: u64) -> BootInstant {
    BootInstant::from_boot(START + Duration::from_secs(seconds))
}

fn charge(until: u64) -> Charge {
    Charge { group: Pid::from_raw(4242).unwrap(), until: at(until) }
}

/// A machine on which each look at the clock sees the next of these moments; the last one stays, and a watch that goes on
/// looking at it fails.
fn looks(moments: &[u64]) -> impl Fn() -> BootInstant {
    let (moments, next) = (moments.to_vec(), Cell::new(0));
    move || {
        let look = next.replace(next.get() + 1);
        assert!(look < moments.len() + 10, "the watch does not end");
        at(moments[look.min(moments.len() - 1)])
    }
}

fn told(renewals: &[Charge]) -> (Sender<Charge>, Receiver<Charge>) {
    let (sender, charges) = crossbeam_channel::unbounded();
    renewals.iter().for_each(|&renewal| sender.send(renewal).unwrap());
    (sender, charges)
}

/// Goal: a renewal that lay there when the machine resumed past the end is not accepted. The process may have seen the
/// clock before the suspend and be stopped right before it reads: the second look decides.
#[test]
fn a_renewal_that_is_read_after_the_end_changes_nothing() {
    for moments in [[3600, 3600].as_slice(), &[5, 5, 3600, 3601], &[5, 5, 26, 30]] {
        let (_sender, charges) = told(&[charge(3620)]);
        let ended = watch(&charges, charge(26), 2 * HOUR, looks(moments));
        assert_eq!(ended, Some(OVER), "looks at {moments:?}");
    }
}

/// Goal: renewals that come in time hold, one after the other, until they end.
#[test]
fn renewals_in_time_hold_until_they_end() {
    let (sender, charges) = told(&[charge(36), charge(46)]);
    // The looks at 10 and 30 are those after a renewal was read.
    assert_eq!(watch(&charges, charge(26), TTL, looks(&[0, 10, 10, 30, 30, 45, 46])), Some(OVER));
    assert!(charges.is_empty(), "both were read");
    drop(sender);
    // And when `palisade lock` ends, there is nothing to say.
    assert_eq!(watch(&charges, charge(26), TTL, looks(&[0])), None);
}

/// Goal: what cannot be true is ignored: a lease that is longer than the TTL, one that ends earlier than the one that is
/// known, another command's.
#[test]
fn renewals_that_cannot_be_true_are_ignored() {
    let (known, now) = (charge(26), at(10));
    let stranger = Charge { group: Pid::from_raw(1).unwrap(), until: at(36) };
    for wrong in [charge(41), charge(1_000_000), charge(26), charge(25), charge(0), stranger] {
        assert_eq!(renew(known, wrong, TTL, now), known, "{wrong:?}");
    }
    let farthest = BootInstant::from_boot(Duration::MAX);
    assert_eq!(renew(known, Charge { until: farthest, ..known }, TTL, now), known);
    assert_eq!(renew(known, charge(40), TTL, now), charge(40));
    assert_eq!(renew(known, charge(40), TTL, at(26)), known, "it comes at the end");
}

/// Goal: a command whose first lease cannot be true does not run without a watch.
#[test]
fn a_first_lease_that_cannot_be_true_kills_at_once() {
    let (_sender, charges) = told(&[]);
    assert_eq!(watch(&charges, charge(31), TTL, looks(&[0])), Some(UNTRUSTED));
    assert_eq!(watch(&charges, charge(26), TTL, looks(&[3600])), Some(OVER));
}

/// Goal: the moment arrives as it was sent, to the nanosecond; nonsense is no charge.
#[test]
fn lines_are_read_as_they_are_written() {
    let until = BootInstant::from_boot(Duration::new(86_400, 123_456_789));
    let group = Pid::from_raw(4242).unwrap();
    assert_eq!(parse("4242 86400123456789"), Some(Charge { group, until }));
    for nonsense in ["", "4242", "4242 ", "0 5", "4242 -5", "x 5", "4242 99999999999999999999999"] {
        assert_eq!(parse(nonsense), None, "{nonsense:?}");
    }
}
