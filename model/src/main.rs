//! scratch
use palisade_model::raft::{Proposals, Tape};
use palisade_model::world::{Bounds, Repeats, World};
use stateright::{Checker, Model};
fn main() {
    if std::env::args().nth(1).as_deref() == Some("locks") { return locks(); }
    if std::env::args().nth(1).as_deref() == Some("cluster") { return cluster(); }
    let a: Vec<u64> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    let bounds = Bounds { servers: a[0] as u16, terms: a[1], log: a[2], crashes: a[3] as u8, network: a[4] as usize, symmetry: a[5] == 1, repeats: Repeats::AtMost(a[6] as u8), answers: if a.get(8) == Some(&1) { palisade_model::world::Answers::AtOnce } else { palisade_model::world::Answers::Messages }, ..Bounds::default() };
    let most = a[2] as u8;
    let log = a[2];
    let world = World::new(bounds, Tape::default(), Proposals { made: 0, most, log });
    let begun = std::time::Instant::now();
    let builder = world.checker().threads(a[7] as usize);
    let checker = if a[5] == 1 { builder.symmetry_fn(World::representative).spawn_dfs() } else { builder.spawn_dfs() };
    let checker = checker.join();
    let s = begun.elapsed().as_secs_f64();
    println!("generated {} unique {} depth {} {s:.1}s {:.2} M/s parts {:?}", checker.state_count(), checker.unique_state_count(), checker.max_depth(), checker.state_count() as f64 / s / 1e6, checker.model().parts());
    for (name, path) in checker.discoveries() {
        println!("{name}: {}", path.into_states().len());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}

fn locks() {
    use palisade_model::locks::{Bounds, Deed, Locks};
    let a: Vec<u64> = std::env::args().skip(2).map(|x| x.parse().unwrap()).collect();
    let model = Locks::new(Bounds { sessions: a[0], keys: a[1] as usize, operations: a[2] as usize, once: a[3] as usize, ttl: a[4], ticks: a[5], alphabet: if a[6] == 2 { &[Deed::Wait, Deed::Release] } else if a[6] == 3 { &[Deed::Wait, Deed::Release, Deed::Withdraw]  } else { &[Deed::Wait, Deed::Try, Deed::Release, Deed::Withdraw] } });
    let begun = std::time::Instant::now();
    let checker = model.checker().threads(1).spawn_dfs().join();
    let s = begun.elapsed().as_secs_f64();
    println!("generated {} unique {} depth {} {s:.1}s {:.2} M/s", checker.state_count(), checker.unique_state_count(), checker.max_depth(), checker.state_count() as f64 / s / 1e6);
    for (name, path) in checker.discoveries() {
        println!("{name}: {}", path.into_states().len());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}

fn cluster() {
    use palisade_model::cluster::{Around, Surroundings};
    let a: Vec<u64> = std::env::args().skip(2).map(|x| x.parse().unwrap()).collect();
    let bounds = Bounds { servers: a[0] as u16, terms: a[1], log: a[2], crashes: a[3] as u8, network: a[4] as usize, symmetry: a[5] == 1, seeded: true, prompt: a.get(12) == Some(&1), heartbeats: a.get(11).map(|&x| x as u8), answers: palisade_model::world::Answers::AtOnce, ..Bounds::default() };
    let around = Around { clients: a[6], ticks: a[7], ttl: a[8], arrivals: a[9] as u8, keepalives: a[10] as u8, log: a[2] };
    let world = World::new(bounds, Surroundings::table(&around), Surroundings::new(around));
    let begun = std::time::Instant::now();
    let builder = world.checker().threads(1);
    let checker = if a[5] == 1 { builder.symmetry_fn(World::representative).spawn_dfs() } else { builder.spawn_dfs() };
    let checker = checker.join();
    let s = begun.elapsed().as_secs_f64();
    println!("generated {} unique {} depth {} {s:.1}s {:.2} M/s parts {:?}", checker.state_count(), checker.unique_state_count(), checker.max_depth(), checker.state_count() as f64 / s / 1e6, checker.model().parts());
    for (name, path) in checker.discoveries() {
        println!("{name}: {}", path.into_states().len());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
