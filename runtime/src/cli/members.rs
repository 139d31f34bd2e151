//! `palisade members` and `palisade transfer`: who belongs to the cluster, and who leads it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use palisade_client::wire::{
    AddMember, Answer, Code, Failure, LeaderView, MemberChange, MemberView, MembersView, Op, StatusView,
};
use palisade_client::{Client, Error, Options};
use palisade_spec::raft::NodeId;
use tokio::time::sleep;

use super::connect::{self, Endpoints};
use super::show::print_json;
use super::{block_on, complain};

/// How long to try again what will pass by itself: a change under way, a new leader.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Show and change who belongs to the cluster, one server at a time
#[derive(Debug, Args)]
pub(super) struct Members {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the members, as the leader knows them
    List(List),
    /// Let a new server learn: it is sent everything, and counts for nothing yet
    Add(Add),
    /// Make a learner a voter, as soon as it has nearly all of the log
    Promote(Promote),
    /// Remove a member for ever: its number never comes back
    Remove(Remove),
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    endpoints: Endpoints,
    /// For machines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Add {
    /// The new server's number, which no member ever had, and where other nodes reach it: 4=HOST:PORT
    #[arg(value_parser = parse_member)]
    member: AddMember,
    #[command(flatten)]
    endpoints: Endpoints,
}

#[derive(Debug, Args)]
struct Promote {
    /// The learner's number
    id: u16,
    /// How long to wait until it has caught up
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
    #[command(flatten)]
    endpoints: Endpoints,
}

#[derive(Debug, Args)]
struct Remove {
    /// The member's number
    id: u16,
    #[command(flatten)]
    endpoints: Endpoints,
}

/// Let the leader hand over to another voter, without an election timeout
#[derive(Debug, Args)]
pub(super) struct Transfer {
    /// To this voter; otherwise to the one that is most up to date
    #[arg(long, value_name = "N")]
    to: Option<u16>,
    #[command(flatten)]
    endpoints: Endpoints,
}

impl Members {
    pub(super) fn run(self) -> ExitCode {
        let result = block_on(async {
            match self.action {
                Action::List(List { endpoints, json }) => list(&endpoints, json).await,
                Action::Add(Add { member, endpoints }) => {
                    let id = member.id;
                    let members = change(&endpoints, MemberChange::Add(member), PATIENCE).await?;
                    say!("node {id} learns now; it counts when it is promoted: palisade members promote {id}");
                    print(&members.members);
                    Ok(())
                }
                Action::Promote(Promote { id, wait, endpoints }) => {
                    print(&change(&endpoints, MemberChange::Promote { id }, wait).await?.members);
                    Ok(())
                }
                Action::Remove(Remove { id, endpoints }) => {
                    let members = change(&endpoints, MemberChange::Remove { id }, PATIENCE).await?;
                    say!("node {id} is removed; stop it, and do not use its number or its data directory again");
                    print(&members.members);
                    Ok(())
                }
            }
        });
        end(result)
    }
}

impl Transfer {
    pub(super) fn run(self) -> ExitCode {
        end(block_on(async {
            // Asked once, of the leader of now: repeated at its successor it would mean another handover.
            let leader = leader(&self.endpoints.parse()?).await?;
            let op = Op::Transfer(palisade_client::wire::Transfer { to: self.to });
            match palisade_client::ask(&leader, op, PATIENCE).await? {
                Answer::Transferred(LeaderView { id, client_addr }) => {
                    say!("node {id} leads now, clients on {}", client_addr.as_deref().unwrap_or("?"));
                }
                other => complain(format!("the leader answered with {other:?}")),
            }
            Ok(())
        }))
    }
}

/// Where the leader serves clients.
async fn leader(endpoints: &[String]) -> Result<String, Error> {
    let mut trouble = None;
    for endpoint in endpoints {
        match palisade_client::status(endpoint, connect::NODE_TIMEOUT).await {
            Ok(status) if status.role == "leader" => return Ok(endpoint.clone()),
            Ok(StatusView { leader: Some(LeaderView { client_addr: Some(leader), .. }), .. }) => return Ok(leader),
            Ok(_) => trouble = trouble.or(Some("no leader is known at the moment".to_owned())),
            Err(error) => trouble = trouble.or(Some(error.to_string())),
        }
    }
    Err(Error::Unreachable { after: connect::NODE_TIMEOUT, trouble: trouble.unwrap_or_default() })
}

/// Asks for the change until it is done, as long as what is in the way passes by itself.
async fn change(endpoints: &Endpoints, change: MemberChange, patience: Duration) -> Result<MembersView, Error> {
    let client = Client::connect(&endpoints.parse()?, Options::default()).await?;
    let begun = Instant::now();
    loop {
        match client.change_members(change.clone()).await {
            Err(Error::Refused(Failure {
                error: Code::ChangeNotReady | Code::NotCaughtUp | Code::NoMajority, ..
            })) if begun.elapsed() < patience => {
                sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// The members as the leader has them, or, without one, as anybody has them.
async fn list(endpoints: &Endpoints, json: bool) -> Result<(), Error> {
    let mut found = None;
    let mut trouble = Error::Closed;
    for endpoint in endpoints.parse()? {
        match palisade_client::status(&endpoint, connect::NODE_TIMEOUT).await {
            Ok(status) => {
                let leads = status.role == "leader";
                found = Some(status.members).filter(|_| leads || found.is_none()).or(found);
                if leads {
                    break;
                }
            }
            Err(error) => trouble = error,
        }
    }
    let members = found.ok_or(trouble)?;
    if json {
        print_json(&MembersView { members });
    } else {
        print(&members);
    }
    Ok(())
}

fn print(members: &[MemberView]) {
    say!("{:>5}  {:<9} {:<24} {:<24} {:>12}", "NODE", "STANDING", "NODES", "CLIENTS", "HAS");
    for member in members {
        let standing = match (member.voter, member.returning) {
            (true, _) => "voter",
            (false, true) => "returning",
            (false, false) => "learner",
        };
        let node = NodeId::new(member.id, member.generation).to_string();
        let client = member.client_addr.as_deref().unwrap_or("-");
        let matched = member.matched.map_or_else(|| "-".to_string(), |matched| matched.to_string());
        say!("{node:>5}  {standing:<9} {:<24} {client:<24} {matched:>12}", member.peer_addr);
    }
}

fn parse_member(text: &str) -> Result<AddMember, String> {
    let (id, peer_addr) = text.split_once('=').ok_or_else(|| format!("`{text}` is not N=HOST:PORT"))?;
    let id = id.trim().parse().map_err(|_| format!("`{id}` is not a node's number"))?;
    Ok(AddMember { id, peer_addr: peer_addr.trim().to_string(), incarnation: None })
}

fn end(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(connect::exit_code(&error))
        }
    }
}
