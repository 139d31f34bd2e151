//! A client reaches the cluster at one address, a load balancer's, and cannot reach what the nodes advertise.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use super::adapter::Adapter;
use super::clusters::{WAIT, await_free, await_queue, holder};
use super::links::{Links, Nowhere};
use super::program::Program;
use crate::support::cluster::{CALM, Cluster};
use crate::support::eventually;

const KEY: &str = "nightly";
/// A TTL within which a client finds that an address leads nowhere, and a new leader.
const KEPT: Duration = Duration::from_secs(12);

/// Goal: where the address that the leader advertises leads nowhere, a client lets the nodes behind its one
/// address forward what it asks. It takes a lock and writes under its token, keeps both when the leader
/// is killed, and when the next one stops and names the one after it; it waits, and releases.
/// At first that address refuses connections, and later it swallows them.
pub fn one_address_before_all_nodes_is_enough(program: &Program) {
    let mut nowhere = Nowhere::closed();
    let flags = ["--advertise-client-addr", &nowhere.address()];
    let mut cluster = Cluster::start_with(3, &[&CALM[..], &flags].concat());
    let balancer = Links::balancer(&cluster);
    let client = Adapter::start(program, balancer.endpoints());
    let granted = client.acquire("holder", KEY, KEPT, Duration::from_secs(30));
    let write = |value: &str| {
        let version = client.send(json!({"do": "put", "key": "report", "value": value, "under": "holder"})).version();
        let read = &client.send(json!({"do": "get", "key": "report"})).ok()["ok"];
        assert_eq!((&read["value"], &read["version"]), (&json!(value), &json!(version)), "{read}");
    };
    write("under the first leader");
    let first = cluster.wait_ready();
    cluster.kill(first);
    let second = cluster.wait_ready();
    write("after the first leader");
    cluster.restart(first);
    cluster.wait_connected();
    // The client takes the next fault for a new one.
    await_renewals(&client);
    nowhere.swallow();
    cluster.stop(second);
    cluster.wait_ready();
    await_renewals(&client);
    let state = client.state("holder");
    assert!(state.valid && state.token == Some(granted.token), "{state:?} after {granted:?}");
    assert_eq!(holder(&cluster, KEY), Some(granted.token));
    write("after the second leader");
    let waiting = client.ask("waiter", KEY, KEPT, WAIT);
    await_queue(&cluster, KEY, 1);
    client.release("holder").ok();
    assert!(waiting.granted().token > granted.token);
    client.release("waiter").ok();
    await_free(&cluster, KEY);
    assert_eq!(client.losses("holder"), 0);
}

/// Waits until the holder's lease was prolonged twice: by the resumption of its session, and by a renewal.
fn await_renewals(client: &Adapter) {
    let mut before = client.state("holder").remaining_ms;
    let mut renewals = 0;
    eventually("the client renews its lease", || {
        sleep(Duration::from_millis(100));
        let now = client.state("holder").remaining_ms;
        renewals += usize::from(now > before);
        before = now;
        (renewals == 2).then_some(())
    });
}
