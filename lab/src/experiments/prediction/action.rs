//! Translates the steps of the gallery for real servers: each sentence of a trace is an action, or an error.

use std::fmt;

/// A client of the gallery's models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(super) enum Client {
    /// Client A.
    A,
    /// Client B.
    B,
}

impl Client {
    /// Both.
    pub(super) const BOTH: [Client; 2] = [Client::A, Client::B];

    /// Its index.
    #[must_use]
    pub(super) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Client::A { "A" } else { "B" })
    }
}

/// What is done to real servers and processes. Servers are identified by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// A client sends SET NX PX to a server, which sets the key.
    Set(Client, usize),
    /// A client asks a lock service for the lock, and is granted it.
    Acquire(Client),
    /// A client looks at its clock.
    Look(Client),
    /// A client is stopped by SIGSTOP until its lease is over.
    Stop(Client),
    /// A client's lease ends at the server.
    Lapse(Client),
    /// A server drops its key, because the TTL is over.
    Expire(usize),
    /// A client sends its write to the resource, without another look at its clock. A stopped one is resumed.
    Write(Client),
    /// A client writes with the greatest number there is, which no client was granted.
    WriteGreatest(Client),
    /// As `Write`; then it releases the lock.
    WriteAndRelease(Client),
    /// A client reads the key, sees its own value, and sends DEL, which the network delays.
    SendDel(Client),
    /// The DEL arrives.
    DelArrives(Client),
    /// A server's wall clock is set forward by the TTL.
    Jump(usize),
    /// A server is killed by SIGKILL.
    Crash(usize),
    /// A killed server is started again.
    Restart(usize),
    /// A replica is promoted, while the first server is cut off from its replicas.
    Promote(usize),
}

/// Sentences of the models. CLIENT stands for A or B, and N for a number.
const SENTENCES: &[(&str, Make)] = &[
    ("instance N sets the key for client CLIENT", |client, n| Action::Set(client, n)),
    ("client CLIENT asks server N for the lock, which grants it", |client, n| Action::Set(client, n)),
    ("client CLIENT asks for the lock and is granted it", |client, _| Action::Acquire(client)),
    ("client CLIENT looks at its clock: its lease is valid", |client, _| Action::Look(client)),
    ("the lease of client CLIENT is over", |client, _| Action::Stop(client)),
    ("client CLIENT pauses until its lease has run out", |client, _| Action::Stop(client)),
    ("the lease of client CLIENT runs out", |client, _| Action::Lapse(client)),
    ("instance N drops the key", |_, n| Action::Expire(n)),
    ("the write of client CLIENT arrives and is done", |client, _| Action::Write(client)),
    ("client CLIENT writes, as it believes under the lock", |client, _| Action::WriteAndRelease(client)),
    ("client CLIENT writes with the greatest number there is", |client, _| Action::WriteGreatest(client)),
    ("client CLIENT writes and is refused: its token is too low", |client, _| Action::WriteAndRelease(client)),
    ("client CLIENT gets the value, sees that it is its own, and sends DEL", |client, _| Action::SendDel(client)),
    ("the DEL of client CLIENT arrives", |client, _| Action::DelArrives(client)),
    ("the clock of instance N jumps ahead: for it, the time-to-live has passed", |_, n| Action::Jump(n)),
    ("instance N crashes before it has synced its file", |_, n| Action::Crash(n)),
    ("instance N serves again, without any key", |_, n| Action::Restart(n)),
    ("server 1 does not answer the replicas any more: server N is promoted", |_, n| Action::Promote(n)),
];

type Make = fn(Client, usize) -> Action;

/// The action of a sentence.
///
/// # Errors
/// The sentence has none.
pub(super) fn of(sentence: &str) -> Result<Action, String> {
    let found = SENTENCES.iter().find_map(|(pattern, make)| {
        let (client, number) = matched(pattern, sentence)?;
        Some(make(client, number))
    });
    found.ok_or_else(|| format!("no action is known for the step `{sentence}`"))
}

/// The client and the index of the server that a sentence names, if it fits the pattern. One that the pattern does not
/// name is the first.
fn matched(pattern: &str, sentence: &str) -> Option<(Client, usize)> {
    let (mut client, mut number) = (Client::A, 0);
    let mut words = sentence.split(' ');
    for wanted in pattern.split(' ') {
        let word = words.next()?;
        match wanted {
            "CLIENT" => client = Client::BOTH.into_iter().find(|client| client.to_string() == word)?,
            "N" => number = word.parse::<usize>().ok()?.checked_sub(1)?,
            _ if wanted == word => {}
            _ => return None,
        }
    }
    words.next().is_none().then_some((client, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_one_action() {
        assert_eq!(of("instance 4 sets the key for client B"), Ok(Action::Set(Client::B, 3)));
        let promoted = "server 1 does not answer the replicas any more: server 2 is promoted";
        assert_eq!(of(promoted), Ok(Action::Promote(1)));
        for wrong in ["instance 0 sets the key for client B", "instance 1 sets the key for client C", "instance 1 sets"]
        {
            assert!(of(wrong).unwrap_err().contains(wrong));
        }
        let all = |(pattern, _): &(&str, Make)| of(&pattern.replace("CLIENT", "A").replace('N', "2")).is_ok();
        assert!(SENTENCES.iter().all(all));
    }
}
