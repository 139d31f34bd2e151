//! Every gallery model can be drawn: the participants, each step in its row, and the violation at
//! the end.

use palisade_model::gallery::Resource;
use palisade_model::gallery::fencing::Fencing;
use palisade_model::gallery::raft_early_apply::{Apply, RaftEarlyApply};
use palisade_model::gallery::raft_early_token::{RaftEarlyToken, Token};
use palisade_model::gallery::raft_local_clock::{RaftLocalClock, Time};
use palisade_model::gallery::raft_queue_in_memory::{Queue, RaftQueueInMemory};
use palisade_model::gallery::redis_failover::{RedisFailover, Rule};
use palisade_model::gallery::redis_release::{RedisRelease, Release};
use palisade_model::gallery::redlock::{Clock, Fault, Redlock, Restart};
use palisade_model::gallery::redlock_pause::RedlockPause;
use palisade_model::presentation::Presentation;
use stateright::{Checker, Expectation, Model, Path};

fn picture<M: Presentation>(model: &M, path: Path<M::State, M::Action>) -> String {
    model.diagram(&path.into_vec()).expect("every story has a picture").svg()
}

/// Draws a way to everything that is found in a model.
fn drawn<M: Presentation>(model: M, takes_part: &[&str]) {
    let checker = model.checker().spawn_bfs().join();
    let model = checker.model();
    for (name, path) in checker.discoveries() {
        let (steps, last) = (path.clone().into_actions().len(), path.last_state().clone());
        let svg = picture(model, path);
        for who in takes_part {
            assert!(svg.contains(&format!(">{who}</text>")), "{who} is missing: {svg}");
        }
        let row = |number: usize| svg.contains(&format!(">{number}</text>"));
        assert!((1..=steps).all(row) && !row(steps + 1), "{name}: a row for each of {steps} steps: {svg}");
        for property in model.properties() {
            let violated = property.expectation == Expectation::Always && !(property.condition)(model, &last);
            let says = svg.contains(&format!(">{} is violated</text>", property.name));
            assert_eq!(says, violated, "{name}: {svg}");
        }
    }
}

#[test]
fn every_gallery_model_can_be_drawn() {
    let servers = ["client A", "server 1", "server 3", "client B"];
    drawn(RedisFailover { rule: Rule::Asynchronous }, &servers);
    drawn(RedisFailover { rule: Rule::WaitForOne }, &servers);
    drawn(RedisRelease { release: Release::GetThenDel }, &["client A", "server", "client B"]);
    let instances = ["client A", "instance 1", "instance 5", "client B"];
    drawn(Redlock { fault: Fault::ClockJump(Clock::Wall) }, &instances);
    drawn(Redlock { fault: Fault::Crash(Restart::AtOnce) }, &instances);
    drawn(
        RedlockPause { resource: Resource::ChecksTokens },
        &["client A", "instance 5", "counter", "resource", "client B"],
    );
    drawn(Fencing { resource: Resource::Trusts }, &["client A", "lock service", "resource", "client B"]);
    drawn(RaftEarlyApply { apply: Apply::AtReceipt }, &["client A", "server 5", "client B"]);
    drawn(RaftEarlyToken { token: Token::FromRequest }, &["client A", "leader", "client B"]);
    drawn(RaftQueueInMemory { queue: Queue::InMemory }, &["client A", "server 3", "client B", "client C"]);
    drawn(RaftLocalClock { time: Time::WhenApplied }, &["client A", "log", "replica 3", "client B"]);
}

/// A message that is sent in one step and arrives in a later one is drawn slanted.
#[test]
fn late_message_is_slanted() {
    let model = RedisRelease { release: Release::GetThenDel };
    let checker = model.checker().spawn_bfs().join();
    let svg = picture(checker.model(), checker.assert_any_discovery("mutual exclusion"));
    let angles = svg.split("rotate(").skip(1).filter_map(|rest| rest.split(')').next()?.parse::<f64>().ok());
    assert_eq!(angles.filter(|angle| angle.abs() > 5.0 && (angle.abs() - 180.0).abs() > 5.0).count(), 1, "{svg}");
}
