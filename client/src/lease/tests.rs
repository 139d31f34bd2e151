use tokio::time::timeout;

use super::*;
use crate::clock::fake;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Goal: an answer that comes after the end changes nothing, however long it lay there unread.
#[test]
fn a_late_renewal_does_not_bring_a_guard_back() {
    let (writer, reader) = lease(fake::clock, fake::clock() + SECOND);
    assert!(!reader.remaining().is_zero());
    fake::suspend(2 * SECOND);
    assert_eq!(reader.remaining(), Duration::ZERO);
    writer.extend(fake::clock() + 60 * SECOND);
    assert_eq!(reader.remaining(), Duration::ZERO);
    assert_eq!(reader.trusted_until(), None);
}

/// Goal: a renewal that was sent before the machine was suspended for a part of the lease counts from that sending.
#[test]
fn a_suspend_within_the_lease_is_counted() {
    let sent = fake::clock();
    let (writer, reader) = lease(fake::clock, sent + HOUR);
    fake::suspend(HOUR / 2);
    assert_eq!(reader.remaining(), HOUR / 2);
    writer.extend(sent + HOUR + SECOND);
    assert_eq!(reader.trusted_until(), Some(sent + HOUR + SECOND));
}

/// Goal: `lost()` resolves soon after the machine has resumed, though the timers know nothing of the suspend; whether or
/// not the background task still runs.
#[tokio::test]
async fn lost_resolves_after_a_suspend() {
    for alone in [false, true] {
        let (writer, reader) = lease(fake::clock, fake::clock() + HOUR);
        let lost = tokio::spawn(reader.lost());
        let writer = (!alone).then_some(writer);
        timeout(SECOND / 2, tokio::task::yield_now()).await.unwrap();
        fake::suspend(3 * HOUR);
        timeout(10 * SECOND, lost).await.expect("it is lost").unwrap();
        drop(writer);
    }
}

/// Goal: `lost()` does not tell a loss of a lock that was given back before, nor keep silent about one that was lost before;
/// whether or not the background task still runs.
#[tokio::test]
async fn lost_never_resolves_after_a_release_in_time() {
    for (alone, lost_before) in [(false, false), (true, false), (false, true), (true, true)] {
        let (writer, reader) = lease(BootInstant::now, BootInstant::now() + SECOND / 10);
        let lost = reader.lost();
        if lost_before {
            writer.lose();
        }
        writer.release();
        let writer = (!alone).then_some(writer);
        assert_eq!(timeout(SECOND / 2, lost).await.is_ok(), lost_before, "{alone}");
        assert_eq!(timeout(SECOND / 2, reader.lost()).await.is_ok(), lost_before, "{alone}");
        drop(writer);
    }
}

/// Goal: a renewal moves the end of `lost()`.
#[tokio::test]
async fn lost_waits_for_the_latest_end() {
    let begin = BootInstant::now();
    let (writer, reader) = lease(BootInstant::now, begin + SECOND / 4);
    let lost = tokio::spawn(reader.lost());
    tokio::task::yield_now().await;
    writer.extend(begin + SECOND);
    timeout(10 * SECOND, lost).await.expect("it is lost").unwrap();
    assert!(BootInstant::now() >= begin + SECOND);
}

/// Times-to-live of the whole range, 100 ms to 24 h, closer to one another where they are short.
fn ttls() -> impl Iterator<Item = Duration> {
    let grown = std::iter::successors(Some(100_u64), |ttl| Some(ttl + ttl / 97 + 1));
    grown.take_while(|&ttl| ttl < 86_400_000).chain([10_000, 100_000, 86_400_000]).map(Duration::from_millis)
}

/// Goal: with any two clocks that are at most 1% off, a guard counts as lost, and its user has had the reaction time,
/// before the session can end at the leader.
#[test]
fn the_margin_covers_clocks_that_are_off_by_one_per_cent() {
    for ttl in ttls() {
        let reaction_time = (ttl / 10).clamp(Duration::from_millis(20), SECOND);
        for client in (-100..=100).map(|off| 1.0 + f64::from(off) / 10_000.0) {
            for leader in (-100..=100).step_by(10).map(|off| 1.0 + f64::from(off) / 10_000.0) {
                // In real time, from the moment of sending.
                let stopped = (ttl - margin(ttl) + reaction_time).div_f64(client);
                let ended = ttl.div_f64(leader);
                assert!(stopped <= ended, "ttl {ttl:?}: rates {client}, {leader}: {stopped:?} > {ended:?}");
            }
        }
    }
}

/// Goal: the margin is not paid for with locks that are lost in good weather: most of a lease can be used.
#[test]
fn the_margin_leaves_most_of_a_lease() {
    for ttl in ttls() {
        assert!(margin(ttl) <= ttl * 22 / 100, "ttl {ttl:?}: margin {:?}", margin(ttl));
    }
    assert_eq!(margin(Duration::from_millis(100)), Duration::from_millis(22));
    assert_eq!(margin(24 * HOUR), Duration::from_secs(28 * 60 + 49));
}
