//! `palisade members` and `palisade status` show which node leads, which is down, and why a cluster
//! has not begun.

use std::fs;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::process::{output, palisade, printed};
use crate::support::{eventually, http};

fn says(arguments: &[&str], endpoints: &[String]) -> String {
    printed(palisade().args(arguments).args(["--endpoints", &endpoints.join(",")]))
}

/// The words of each node's line in a table of members.
fn table(said: &str) -> Vec<Vec<&str>> {
    let lines = said.lines().skip_while(|line| !line.contains("STANDING")).skip(1);
    lines.map(|line| line.split_whitespace().collect()).collect()
}

/// Goal: at one look an operator sees who leads and who is down, whichever node is asked.
#[test]
fn members_list_shows_the_leader_and_what_is_down() {
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let [down, up] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    cluster.kill(down);
    let state = |id: u16| {
        if id == leader {
            "leader"
        } else if id == down {
            "DOWN"
        } else {
            "up"
        }
    };
    let asked = [cluster.client_addr(up)];
    let listed = eventually("the leader notices", || {
        let said = says(&["members", "list"], &asked);
        said.contains("DOWN").then_some(said)
    });
    for (line, id) in table(&listed).iter().zip(1..) {
        let (node, client_addr) = (id.to_string(), cluster.client_addr(id));
        assert_eq!((line[0], line[1], line[2]), (node.as_str(), "voter", state(id)), "{listed}");
        assert_eq!(line[4], client_addr, "{listed}");
        // The program, and the version in which it and the leader speak; of a node that is down, what it has said last.
        assert_eq!(line[6..], [env!("CARGO_PKG_VERSION"), "11"], "{listed}");
    }
    let machine: Value = serde_json::from_str(&says(&["members", "list", "--json"], &asked)).unwrap();
    assert_eq!(machine["leader"], json!({"id": leader, "client_addr": cluster.client_addr(leader)}));

    // A change prints the same table: the leader's answer has addresses and connections.
    let repeated = says(&["members", "promote", &up.to_string()], &asked);
    for (line, id) in table(&repeated).iter().zip(1..) {
        assert_eq!((line[2], line[4]), (state(id), cluster.client_addr(id).as_str()), "{repeated}");
    }
    let removed = http::send(&cluster.client_addr(leader), "DELETE", &format!("/v1/members/{down}"), "").unwrap().ok();
    for member in removed["members"].as_array().unwrap() {
        let id = u16::try_from(member["id"].as_u64().unwrap()).unwrap();
        assert_eq!((&member["client_addr"], &member["connected"]), (&json!(cluster.client_addr(id)), &json!(true)));
    }
    assert_eq!(removed["leader"]["id"], leader);
}

/// Goal: `status` leaves no member out, although the operator names one node only.
#[test]
fn status_shows_members_that_were_not_named() {
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let [down, named] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let asked = [cluster.client_addr(named)];
    eventually("the named node knows all client addresses", || {
        (says(&["status"], &asked).lines().filter(|line| line.contains("127.0.0.1")).count() == 3).then_some(())
    });
    cluster.kill(down);
    let said = says(&["status"], &asked);
    let line = |id: u16| said.lines().find(|line| line.starts_with(&cluster.client_addr(id))).unwrap();
    assert!(line(leader).contains(" leader ") && line(named).contains(" follower "), "{said}");
    let words: Vec<&str> = line(down).split_whitespace().collect();
    assert_eq!(words[1..3], [down.to_string().as_str(), "unreachable:"], "{said}");

    // A node that started while a member was down cannot know where the member serves clients.
    cluster.kill(named);
    cluster.restart(named);
    cluster.wait_ready();
    cluster.kill(leader);
    let said = says(&["status"], &asked);
    assert_eq!(said.lines().count(), 4, "{said}");
    let unknown = said.lines().find(|line| line.starts_with("- ")).unwrap();
    assert!(
        unknown.contains(&format!(" {down}  unreachable: no node that answered knows its client address")),
        "{said}"
    );
}

/// Goal: a health check needs no HTTP client: `status --ready` says whether this node knows a leader, and nothing else.
#[test]
fn status_ready_tells_whether_the_node_knows_a_leader() {
    let mut cluster = Cluster::start_calm(3);
    let addresses = cluster.endpoints();
    let check = |endpoints: &str| output(palisade().args(["status", "--ready", "--endpoints", endpoints]));
    let ready = check(&addresses[0]);
    assert!(ready.status.success() && ready.stdout.is_empty() && ready.stderr.is_empty(), "{ready:?}");
    assert!(check(&addresses.join(",")).status.success());
    cluster.kill(2);
    let down = check(&addresses.join(","));
    let said = String::from_utf8_lossy(&down.stderr);
    assert_eq!(down.status.code(), Some(69), "{said}");
    assert!(said.contains(&format!("{} is unreachable", addresses[1])), "{said}");
    // The other nodes are not asked for the state of this one.
    cluster.kill(3);
    eventually("node 1 knows no leader", || (check(&addresses[0]).status.code() == Some(75)).then_some(()));
    let said = check(&addresses[0]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("knows no leader at the moment"), "{said:?}");
}

/// Goal: founders that wait for one another do not look like followers of term 0: `status`,
/// `/readyz` and the log name the founders that are missing.
#[test]
fn waiting_founders_name_the_missing_ones() {
    let mut cluster = Cluster::start(3);
    cluster.ids().into_iter().for_each(|id| cluster.kill(id));
    cluster.ids().into_iter().for_each(|id| fs::remove_dir_all(cluster.data(id)).unwrap());
    cluster.begin_anew();
    cluster.restart(1);
    let status = eventually("node 1 serves clients", || cluster.status(1));
    assert_eq!((status.role.as_str(), status.waiting_for), ("founding", vec![2, 3]));
    cluster.restart(2);
    eventually("node 1 has met node 2", || (cluster.status(1)?.waiting_for == [3]).then_some(()));
    let unready = http::get(&cluster.client_addr(1), "/readyz").unwrap();
    let refused = unready.refused(503, "no_leader");
    assert!(refused["message"].as_str().unwrap().ends_with("it has not met: 3"), "{refused}");
    assert_eq!(unready.header("retry-after"), Some("1"));
    let said = says(&["status"], &[cluster.client_addr(1)]);
    assert!(said.contains(" founding ") && said.contains("it has not met: 3"), "{said}");
    assert!(cluster.log(1).contains("this founder takes no part yet"), "{}", cluster.log(1));
    cluster.restart(3);
    let leader = cluster.wait_ready();
    let status = cluster.status(leader).unwrap();
    assert_eq!((status.role.as_str(), status.waiting_for), ("leader", vec![]));
}
