//! `palisade members` and `palisade transfer`: membership changes and leadership transfer.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use palisade::addresses::reachable_address;
use palisade_client::Error;
use palisade_client::wire::{AddMember, Answer, Code, Failure, LeaderView, MemberChange, MembersView, Op, StatusView};
use palisade_spec::raft::NodeId;
use tokio::time::sleep;

use super::connect::{self, Endpoints};
use super::nodes::{ask_cluster, most_current};
use super::show::print_json;
use super::table::{Cell, Side, Table, Tone};
use super::{block_on, print_error};

/// How long to repeat a request after a temporary refusal: another change in progress, a new
/// leader.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// List the cluster's members and change the membership, one server at a time
#[derive(Debug, Args)]
pub(super) struct Members {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the members, whether each is connected, and which one leads: according to the leader, or
    /// to another node if there is none
    List(List),
    /// Add a server as a learner: it receives the log, and has no vote until it is promoted
    Add(Add),
    /// Make a learner a voter as soon as it has caught up with the log
    Promote(Promote),
    /// Remove a member for good: its node ID cannot be used again
    Remove(Remove),
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Add {
    /// The new server's node ID, which no member ever had, and the address at which other nodes
    /// reach it: 4=HOST:PORT
    #[arg(value_parser = parse_member)]
    member: AddMember,
    #[command(flatten)]
    endpoints: Endpoints,
}

#[derive(Debug, Args)]
struct Promote {
    /// The learner's node ID
    id: u16,
    /// How long to wait for the learner to catch up
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
    #[command(flatten)]
    endpoints: Endpoints,
}

#[derive(Debug, Args)]
struct Remove {
    /// The member's node ID
    id: u16,
    #[command(flatten)]
    endpoints: Endpoints,
}

/// Transfer leadership to another voter, without waiting for an election timeout
#[derive(Debug, Args)]
pub(super) struct Transfer {
    /// Node ID of the voter to transfer to; by default the voter that is most up to date
    #[arg(long, value_name = "N")]
    to: Option<u16>,
    #[command(flatten)]
    endpoints: Endpoints,
}

impl Members {
    pub(super) fn run(self) -> ExitCode {
        end(block_on(async {
            match self.action {
                Action::List(List { endpoints, json }) => list(&endpoints, json).await,
                Action::Add(Add { member, endpoints }) => {
                    let id = member.id;
                    let members = change(&endpoints, MemberChange::Add(member), RETRY_FOR).await?;
                    outln!("node {id} is a learner now; to make it a voter: palisade members promote {id}");
                    print(&members);
                    Ok(())
                }
                Action::Promote(Promote { id, wait, endpoints }) => {
                    print(&change(&endpoints, MemberChange::Promote { id }, wait).await?);
                    Ok(())
                }
                Action::Remove(Remove { id, endpoints }) => {
                    let members = change(&endpoints, MemberChange::Remove { id }, RETRY_FOR).await?;
                    outln!("node {id} is removed; stop it, and do not use its node ID or its data directory again");
                    print(&members);
                    Ok(())
                }
            }
        }))
    }
}

impl Transfer {
    pub(super) fn run(self) -> ExitCode {
        end(block_on(async {
            // Send the request once, to the current leader: a repetition at the next leader would
            // transfer leadership again.
            let leader = leader(&self.endpoints).await?;
            // Unless the leader refuses it for coming too soon after the last one.
            let begun = Instant::now();
            let answer = loop {
                let op = Op::Transfer(palisade_client::wire::Transfer { to: self.to });
                match self.endpoints.security().ask(&leader, op, RETRY_FOR).await {
                    Err(Error::Refused(Failure { error: Code::TooSoon, .. })) if begun.elapsed() < RETRY_FOR => {
                        sleep(10 * PAUSE).await;
                    }
                    answer => break answer?,
                }
            };
            match answer {
                Answer::Transferred(LeaderView { id, client_addr }) => {
                    let client_addr = client_addr.as_deref().unwrap_or("an unknown address");
                    outln!("node {id} is the leader now and answers on {client_addr}");
                }
                other => print_error(format!("the leader sent an unexpected answer to the transfer: {other:?}")),
            }
            Ok(())
        }))
    }
}

/// The leader's client address.
async fn leader(endpoints: &Endpoints) -> Result<String, Error> {
    let security = endpoints.security();
    let mut first_error = None;
    for endpoint in endpoints.parse()? {
        match security.status(&endpoint, connect::NODE_TIMEOUT).await {
            Ok(status) if status.role == "leader" => return Ok(endpoint),
            Ok(StatusView { leader: Some(LeaderView { client_addr: Some(leader), .. }), .. }) => return Ok(leader),
            Ok(_) => first_error = first_error.or(Some("no node that answered knows a leader; try again".to_owned())),
            Err(error) => first_error = first_error.or(Some(error.to_string())),
        }
    }
    Err(Error::Unreachable { after: connect::NODE_TIMEOUT, trouble: first_error.unwrap_or_default() })
}

/// Requests the change, and repeats the request for `retry_for` while the refusals are temporary.
async fn change(endpoints: &Endpoints, change: MemberChange, retry_for: Duration) -> Result<MembersView, Error> {
    let client = endpoints.connect().await?;
    let begun = Instant::now();
    loop {
        match client.change_members(change.clone()).await {
            Err(Error::Refused(Failure {
                error: Code::ChangeNotReady | Code::NotCaughtUp | Code::NoMajority, ..
            })) if begun.elapsed() < retry_for => {
                sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Prints the members according to the leader, or, if no node that answers leads, to one of them.
async fn list(endpoints: &Endpoints, json: bool) -> Result<(), Error> {
    let answers = ask_cluster(endpoints.parse()?, &endpoints.security()).await;
    let Some(StatusView { node, role, members, leader, .. }) = most_current(&answers).cloned() else {
        let trouble = answers.into_iter().find_map(|answer| answer.error).unwrap_or_default();
        return Err(Error::Unreachable { after: connect::NODE_TIMEOUT, trouble });
    };
    let view = MembersView { members, leader };
    if json {
        print_json(&view);
        return Ok(());
    }
    if role != "leader" {
        outln!("no node that answered leads; the members as node {node} knows them:");
    }
    print(&view);
    Ok(())
}

fn print(MembersView { members, leader }: &MembersView) {
    let mut columns = vec![
        ("NODE", Side::Right),
        ("STANDING", Side::Left),
        ("STATE", Side::Left),
        ("PEER ADDRESS", Side::Left),
        ("CLIENT ADDRESS", Side::Left),
        ("MATCHED", Side::Right),
    ];
    // The answer to a change of members does not say what they run.
    let shows_programs = members.iter().any(|member| member.protocol.is_some());
    if shows_programs {
        columns.extend([("VERSION", Side::Left), ("PROTOCOL", Side::Right)]);
    }
    let mut table = Table::new(&columns);
    for member in members {
        let standing = match (member.voter, member.returning) {
            (true, _) => "voter".into(),
            (false, true) => Cell::new("returning", Tone::Warn),
            (false, false) => Cell::new("learner", Tone::Warn),
        };
        let state = match leader {
            Some(leader) if leader.id == member.id => Cell::new("leader", Tone::Good),
            _ if member.connected => "up".into(),
            _ => Cell::new("DOWN", Tone::Bad),
        };
        let node = NodeId::new(member.id, member.generation);
        let client = member.client_addr.as_deref().unwrap_or("-");
        let matched = member.matched.map_or_else(|| "-".to_string(), |matched| matched.to_string());
        let version = member.version.as_deref().unwrap_or("-");
        let protocol = member.protocol.map_or_else(|| "-".to_string(), |protocol| protocol.to_string());
        let programs = shows_programs.then(|| [version.into(), protocol.into()]);
        let named = [node.into(), standing, state, (&member.peer_addr).into(), client.into(), matched.into()];
        table.row(named.into_iter().chain(programs.into_iter().flatten()));
    }
    table.print();
}

fn parse_member(text: &str) -> Result<AddMember, String> {
    let (id, peer_addr) = text.split_once('=').ok_or_else(|| format!("`{text}` does not have the form N=HOST:PORT"))?;
    let id = id.trim().parse().map_err(|_| format!("`{id}` is not a node ID (an integer from 0 to 65535)"))?;
    Ok(AddMember { id, peer_addr: reachable_address(peer_addr)?, incarnation: None })
}

fn end(result: Result<(), Error>) -> ExitCode {
    result.map_or_else(|error| connect::fail(&error), |()| ExitCode::SUCCESS)
}
