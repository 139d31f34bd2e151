//! Some nodes cannot reach one another, and no partition in two halves describes it: others reach
//! both (Cloudflare, 2020; openraft 2080). A node that misses the leader must not depose it while a
//! majority hears the leader; and a leader that too few nodes hear must not keep the others from
//! electing another.

use std::time::{Duration, Instant};

use super::{KEY, LONG, await_queue};
use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, holder_and_queue, lock, open_session, release};
use crate::support::wires::Wires;
use crate::support::{eventually, http};

/// Long beside the moments in which a busy machine stands still.
const ELECTION: &str = "1s";
/// Several elections could have been held by then.
const WHILE: Duration = Duration::from_secs(10);

/// Goal: of three nodes one loses contact with the leader, in both directions; the third reaches
/// both. The leader keeps leading in the same term, and clients are served all the time, though the
/// separated node asks for an election again and again.
#[test]
fn a_follower_that_lost_the_leader_deposes_no_leader() {
    let wires = Wires::default();
    let cluster = Cluster::start_wired(3, &["--election-timeout", ELECTION], &wires);
    let leader = cluster.wait_ready();
    let (address, term) = (cluster.client_addr(leader), cluster.status(leader).unwrap().term);
    let lonely = leader % 3 + 1;
    wires.cut(leader, lonely);
    eventually("it misses the leader", || cluster.status(lonely)?.leader.is_none().then_some(()));
    let begin = Instant::now();
    let mut served = 0;
    while begin.elapsed() < WHILE {
        let session = http::post(&address, "/v1/sessions", "{}").expect("the node answers").ok()["session"].clone();
        let path = format!("/v1/sessions/{}", session.as_str().expect("a session"));
        http::send(&address, "DELETE", &path, "").expect("the node answers").ok();
        served += 1;
    }
    let (leads, lost) = (cluster.status(leader).unwrap(), cluster.status(lonely).unwrap());
    assert_eq!((leads.role.as_str(), leads.term), ("leader", term), "after {served} sessions");
    assert!(lost.leader.is_none(), "no node told it of the leader: this wire is cut");
    wires.mend();
    assert_eq!(cluster.wait_ready(), leader, "it follows again");
    assert_eq!(cluster.status(leader).unwrap().term, term, "and has brought no later term");
}

/// Goal: of five nodes the leader reaches one, which reaches two others, and the fifth reaches no
/// node. Those three elect one of them and serve; what was granted before is there.
#[test]
fn a_leader_that_reaches_too_few_gives_way() {
    let wires = Wires::default();
    let cluster = Cluster::start_wired(5, &["--election-timeout", ELECTION], &wires);
    let holder = open_session(&cluster, "holder", LONG);
    let held = acquire(&cluster, KEY, holder);
    let leader = cluster.wait_ready();
    let [bridge, one, other, lonely] = [1, 2, 3, 4].map(|step| (leader - 1 + step) % 5 + 1);
    for far in [one, other, lonely] {
        wires.cut(leader, far);
    }
    for far in [bridge, one, other] {
        wires.cut(lonely, far);
    }
    let together = [bridge, one, other];
    let successor = eventually("the three that reach one another elect one of them", || {
        let leaders = together.map(|id| Some(cluster.status(id)?.leader?.id));
        let first = leaders[0]?;
        (together.contains(&first) && leaders == [Some(first); 3]).then_some(first)
    });
    let address = cluster.client_addr(successor);
    let served = eventually("it serves", || {
        let answer = http::get(&address, &format!("/v1/locks/{KEY}")).ok()?;
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(served["holder"]["token"], held.token, "what was granted is there");
    wires.mend();
    cluster.wait_ready();
    await_queue(&cluster, &[]);
    assert_eq!(holder_and_queue(&lock(&cluster, KEY)).0, Some((holder.number(), held.token)));
    release(&cluster, KEY, holder, held.token);
}
