//! Random commands to a lock table: few keys, sessions and principals, so that they meet.

use std::sync::Arc;

use palisade_spec::lock::{
    Bytes, Change, Claim, Command, Condition, Key, Keys, LockRequest, LockTable, Mode, Opening, Owner, Prefix,
    Principal, Proof, Revision, Right, Rights, Role, RoleMembers, Rule, Rules, Sequence, SessionId, Subject, Token,
    Transaction, Ttl, Value, Version, Writer,
};
use palisade_spec::raft::Payload;

/// Makes commands that fit this table more often than chance would.
pub(crate) struct Commands<'a> {
    pub(crate) random: &'a mut Random,
    pub(crate) table: &'a LockTable,
}

impl Commands<'_> {
    /// A random command, or a no-op.
    pub(crate) fn payload(&mut self) -> Payload<Command> {
        let key = Key::from(["k", "l", "m"][self.random.index(3)]);
        let session = self.session();
        let number = 1 + self.random.below(6);
        let sequence = Sequence::new(number).filter(|_| self.random.below(2) == 0);
        let opening = Opening {
            proof: Proof::from(u128::from(self.random.below(16))),
            owner: Owner::from("a"),
            principal: self.principal(),
            ttl: Ttl([40, 100, 400][self.random.index(3)]),
        };
        let request = LockRequest {
            keys: self.keys(),
            // The holders of a semaphore leave room for others, or not.
            mode: [Mode::EXCLUSIVE, Mode::SHARED, semaphore(1, 3), semaphore(2, 3)][self.random.index(5).min(3)],
            max_queue: [0, 1, 2, LockRequest::ANY_QUEUE][self.random.index(7).min(3)],
            reentrant: self.random.below(3) == 0,
            value: (self.random.below(3) == 0).then(|| self.value()),
        };
        let keys = request.keys.clone();
        let claim = match self.random.below(3) {
            0 => Claim::Held(self.granted(keys.first())),
            1 => Claim::Waiting,
            _ => Claim::Either,
        };
        Payload::Command(match self.random.below(21) {
            0..2 => Command::Open { opening },
            2..3 => Command::Close { session },
            3..6 => Command::KeepAlive { sessions: vec![session, self.session()] },
            6..11 => Command::Acquire { session, sequence, request },
            11..12 => Command::AcquireOnce { opening, request },
            12..14 => self.release(Command::Release { session, sequence, keys, claim }),
            14 => {
                // Few locks are held at any moment, and rules permit few breaks.
                let position = usize::try_from(number).expect("a small number");
                let key = self.table.locks().keys().cycle().nth(position).cloned().unwrap_or(key);
                let granted = self.granted(&key);
                let token = Token(granted.0 - (self.random.below(4) / 3).min(granted.0 - 1));
                let client = self.principal();
                let principal = if number > 2 { Principal::from("admin/eve") } else { client };
                Command::Break { key, token, principal }
            }
            15 => self.set_access(),
            16 => {
                // Few locks are held at any moment.
                let position = usize::try_from(number).expect("a small number");
                let key = self.table.locks().keys().cycle().nth(position).cloned().unwrap_or(key);
                let holder = self.table.lock(&key).and_then(|lock| lock.first_holder()).map(|holder| holder.session);
                let session = holder.filter(|_| self.random.below(4) > 0).unwrap_or(session);
                Command::Proclaim { session, sequence, token: self.granted(&key), key, value: self.value() }
            }
            17..20 => self.transact(session, sequence),
            _ => return Payload::Noop,
        })
    }

    /// A release of a claim that a table has, if it has one, and three times in four; else the given one.
    fn release(&mut self, other: Command) -> Command {
        let locks: Vec<_> = self.table.locks().iter().collect();
        if locks.is_empty() || self.random.below(4) == 0 {
            return other;
        }
        let (key, lock) = locks[self.random.index(locks.len())];
        let held = lock.holders.iter().map(|holder| (holder.session, holder.keys(key), Claim::Held(holder.token)));
        let waiting = lock.queue.iter().map(|waiter| (waiter.session, waiter.keys(key), Claim::Waiting));
        let claims: Vec<_> = held.chain(waiting).collect();
        let (session, keys, claim) = claims[self.random.index(claims.len())].clone();
        let Command::Release { sequence, .. } = other else { return other };
        Command::Release { session, sequence, keys, claim }
    }

    /// An acquire, and a write under the token that it will have unless another entry comes between. A holder
    /// that is told its token first is mostly due by then.
    pub(crate) fn acquire_and_write(&mut self) -> [Command; 2] {
        let (proof, owner, principal) = (Proof::default(), Owner::from("a"), Principal::from("admin/eve"));
        let opening = Opening { proof, owner, principal: principal.clone(), ttl: Ttl(100) };
        let lock = Key::from(["k", "l", "m"][self.random.index(3)]);
        let token = self.table.next_token();
        let acquire = Command::AcquireOnce { opening, request: LockRequest::exclusive(lock.clone(), false) };
        let change = Change::Put { record: Key::from("r"), bytes: Bytes::from("x") };
        let transaction =
            Transaction { conditions: vec![Condition::Held { lock, token }], changes: vec![change], limit: u64::MAX };
        [acquire, Command::Transact { writer: Writer::Client(principal), transaction }]
    }

    /// A random transaction of a session or of a client, mostly under a token that is held.
    fn transact(&mut self, session: SessionId, sequence: Option<Sequence>) -> Command {
        let record = |commands: &mut Commands<'_>| Key::from(["k", "r", "s"][commands.random.index(3)]);
        // Few locks are held at any moment.
        let held = self.table.locks().iter().filter(|(_, lock)| !lock.holders.is_empty());
        let held: Vec<Key> = held.map(|(lock, _)| lock.clone()).collect();
        let mut conditions = Vec::new();
        if !held.is_empty() && self.random.below(4) > 0 {
            let lock = held[self.random.index(held.len())].clone();
            let granted = self.granted(&lock);
            let token = Token(granted.0 - (self.random.below(4) / 3).min(granted.0 - 1));
            conditions.push(Condition::Held { lock, token });
        }
        if self.random.below(4) == 0 {
            let record = record(self);
            let present = self.table.record(&record).map(|record| record.version);
            let version = if self.random.below(3) == 0 { Some(Version(1 + self.random.below(9))) } else { present };
            conditions.push(Condition::Version { record, version });
        }
        let changes = (0..1 + self.random.below(3)).map(|_| {
            let (record, bytes) = (record(self), Bytes::from(["", "x", "yy"][self.random.index(3)]));
            match self.random.below(4) {
                0..2 => Change::Put { record, bytes },
                2 => Change::Append { record, bytes },
                _ => Change::Delete { record },
            }
        });
        let transaction = Transaction { conditions, changes: changes.collect(), limit: 130 + self.random.below(170) };
        let writer = match self.random.below(3) {
            0 => Writer::Client(self.principal()),
            _ => Writer::Session { session, sequence },
        };
        Command::Transact { writer, transaction }
    }

    fn value(&mut self) -> Value {
        Value::from(["x", "y", "z"][self.random.index(3)])
    }

    /// One key, or some times two or three.
    fn keys(&mut self) -> Keys {
        let mut keys = ["k", "l", "m"].map(Key::from).to_vec();
        keys.rotate_left(self.random.index(3));
        keys.truncate([1, 1, 1, 2, 3][self.random.index(5)]);
        Keys::new(keys).expect("they differ")
    }

    /// The latest grant of a key that is held.
    fn granted(&self, key: &Key) -> Token {
        self.table.lock(key).and_then(|lock| lock.holders.last()).map_or(Token(1), |holder| holder.token)
    }

    fn principal(&mut self) -> Principal {
        Principal::from(["", "ann", "bob", "admin/eve"][self.random.index(4)])
    }

    /// Sets random rules, mostly as an administrator that knows the present revision; half of them are
    /// none, so that the other commands have effects.
    fn set_access(&mut self) -> Command {
        let principal = if self.random.below(3) == 0 { self.principal() } else { Principal::from("admin/eve") };
        let known = self.table.access().revision().0;
        let revision = Revision(if self.random.below(4) == 0 { known.saturating_sub(1) } else { known });
        let rules = (self.random.below(2) == 0).then(|| {
            let rules = (0..self.random.below(5)).map(|_| Rule {
                prefix: Prefix::from(["", "k", "l"][self.random.index(3)]),
                subject: match self.random.below(4) {
                    0 => Subject::Everyone,
                    1 => Subject::Role(Role::from("ops")),
                    2 => Subject::Principal(Principal::from("ann")),
                    _ => Subject::Principal(Principal::from("bob")),
                },
                rights: Rights::of(Right::ALL.into_iter().filter(|_| self.random.below(2) == 0)),
            });
            let rules = rules.collect();
            let members = vec![Principal::from("bob")];
            Arc::new(Rules::new(vec![RoleMembers { role: Role::from("ops"), members }], rules))
        });
        Command::SetAccess { principal, revision, rules }
    }

    /// A live session, or sometimes one that does not exist, or the number of a live one with
    /// another proof.
    fn session(&mut self) -> SessionId {
        let live: Vec<SessionId> = self.table.sessions().keys().copied().collect();
        let proof = Proof::from(u128::from(self.random.below(16)));
        if live.is_empty() || self.random.below(10) == 0 {
            return SessionId { number: 1 + self.random.below(20), proof };
        }
        let session = live[self.random.index(live.len())];
        if self.random.below(10) == 0 { SessionId { proof, ..session } } else { session }
    }
}

/// SplitMix64: the sequence never changes, so that a seed identifies a run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a length")
    }

    /// An index, mostly a small one: messages tend to arrive in order.
    pub(crate) fn mostly_first(&mut self, length: usize) -> usize {
        if self.below(3) == 0 { self.index(length) } else { self.index(length.min(3)) }
    }
}

fn semaphore(permits: u32, of: u32) -> Mode {
    Mode::semaphore(permits, of).expect("a sound number of permits")
}
