//! One key's lock: its holders and its waiters.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Deref;

use serde::{Deserialize, Serialize, Serializer};

use super::details::Details;
use super::{Key, Keys, LockRequest, Mode, Sequence, SessionId, Token, Value};

/// A lock that has a holder or a waiter. A free lock has no entry in the table and takes no memory.
///
/// Only a waiter for several keys can stand first at a lock that has room for it: while it waits for
/// another of its keys, no other waiter overtakes it here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lock {
    /// The holders, in the order of the grants.
    pub holders: Holders,
    /// The waiters, first come first.
    pub queue: Queue,
}

/// The claim of a session that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Its session.
    pub session: SessionId,
    /// The grant's fencing token.
    pub token: Token,
    /// The number of the acquire operation: a repetition of it is answered with this grant.
    pub sequence: Option<Sequence>,
    /// How much of the lock it takes.
    pub mode: Mode,
    /// The number of releases that give it up: 1, and one more for each reentrant acquire.
    pub holds: u32,
    /// Its further keys, and its value.
    pub(super) details: Details,
}

/// The claim of a session that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiter {
    /// Its session.
    pub session: SessionId,
    /// The number of the acquire operation.
    pub sequence: Option<Sequence>,
    /// How much of the lock it will take.
    pub mode: Mode,
    /// Its further keys, and its value.
    pub(super) details: Details,
}

/// Whether a session holds a lock or waits for it, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimIndex {
    /// It holds the lock, and is the holder with this index.
    Holds(usize),
    /// It waits, behind so many others.
    Waits(usize),
}

impl Holder {
    /// All keys of the claim; `key` is one of them.
    pub fn keys(&self, key: &Key) -> Keys {
        self.details.keys(key)
    }

    /// The same keys, without a copy.
    pub fn all_keys<'a>(&'a self, key: &'a Key) -> &'a [Key] {
        self.details.all_keys(key)
    }

    /// The value of the claim.
    pub fn value(&self) -> Option<&Value> {
        self.details.value()
    }

    /// Whether these are all keys of the claim; one of them is.
    pub(super) fn claims_exactly(&self, keys: &Keys) -> bool {
        self.details.claims_exactly(keys)
    }
}

impl Waiter {
    /// What a session claims by a request.
    pub(crate) fn new(session: SessionId, sequence: Option<Sequence>, request: &LockRequest) -> Waiter {
        let LockRequest { keys, mode, value, .. } = request;
        Waiter { session, sequence, mode: *mode, details: Details::new(keys, value.clone()) }
    }

    /// All keys of the claim; `key` is one of them.
    pub fn keys(&self, key: &Key) -> Keys {
        self.details.keys(key)
    }

    /// The same keys, without a copy.
    pub fn all_keys<'a>(&'a self, key: &'a Key) -> &'a [Key] {
        self.details.all_keys(key)
    }

    /// The value of the claim.
    pub fn value(&self) -> Option<&Value> {
        self.details.value()
    }

    /// Whether these are all keys of the claim; one of them is.
    pub(super) fn claims_exactly(&self, keys: &Keys) -> bool {
        self.details.claims_exactly(keys)
    }
}

impl Lock {
    /// Whether this session holds the lock or waits for it, and its index there.
    pub fn claim_index(&self, session: SessionId) -> Option<ClaimIndex> {
        let holds = self.holders.iter().position(|holder| holder.session == session);
        holds.map(ClaimIndex::Holds).or_else(|| self.queue_position(session).map(ClaimIndex::Waits))
    }

    /// The position of `session` in the queue; `None` if it does not wait.
    pub fn queue_position(&self, session: SessionId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.session == session)
    }

    /// The claim of this session, if it holds the lock.
    pub fn holder(&self, session: SessionId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.session == session)
    }

    /// The holder that has held it longest. A lock that is only waited for has none.
    pub fn first_holder(&self) -> Option<&Holder> {
        self.holders.first()
    }

    /// The holder that was granted the lock with this token.
    pub fn holder_with(&self, token: Token) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.token == token)
    }

    /// The mode of the claim that came first; all claims have its number of permits.
    pub fn first_mode(&self) -> Option<Mode> {
        let holder = self.holders.first().map(|holder| holder.mode);
        holder.or_else(|| self.queue.front().map(|waiter| waiter.mode))
    }

    /// Whether the holders leave room for one more claim of this mode.
    pub fn has_room_for(&self, mode: Mode) -> bool {
        self.holders.permits() + u64::from(mode.permits()) <= u64::from(mode.of())
    }

    /// The first holder, if sessions wait for the lock: if it is due, it is swept before sessions for which
    /// none waits. Only the first, so that a waiter that comes or leaves changes one entry of an index,
    /// however many sessions hold the lock.
    pub fn contended_holder(&self) -> Option<SessionId> {
        self.holders.first().filter(|_| !self.queue.is_empty()).map(|holder| holder.session)
    }

    /// The value of this session's claim.
    pub fn value(&self, session: SessionId) -> Option<&Value> {
        match self.claim_index(session)? {
            ClaimIndex::Holds(index) => self.holders[index].value(),
            ClaimIndex::Waits(index) => self.queue[index].value(),
        }
    }

    /// Gives details to the claims of these sessions.
    pub(super) fn set_details(&mut self, details: &BTreeMap<SessionId, Details>) {
        for index in 0..self.holders.len() {
            if let Some(details) = details.get(&self.holders[index].session) {
                self.holders.at(index).details = details.clone();
            }
        }
        if !self.queue.is_empty() {
            self.queue.change(|queue| {
                for waiter in queue {
                    if let Some(details) = details.get(&waiter.session) {
                        waiter.details = details.clone();
                    }
                }
            });
        }
    }

    /// The bytes of its claims; `key` is its key.
    pub(super) fn bytes(&self, key: &Key) -> u64 {
        let details = self.holders.iter().map(|holder| &holder.details);
        details.chain(self.queue.iter().map(|waiter| &waiter.details)).map(|details| details.bytes(key)).sum()
    }

    /// Whether there is neither a holder nor a waiter.
    pub(super) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }
}

/// The holders of a lock, in the order of their grants. Most locks have one, and need no list for it.
/// Each number of holders has exactly one representation, so equal lists are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Vec<Holder>")]
pub struct Holders(Inner);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Inner {
    #[default]
    None,
    One(Holder),
    Many(Box<Many>),
}

/// Two or more holders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Many {
    /// The permits that they take together.
    permits: u64,
    list: Vec<Holder>,
}

impl Deref for Holders {
    type Target = [Holder];

    fn deref(&self) -> &[Holder] {
        match &self.0 {
            Inner::None => &[],
            Inner::One(holder) => core::slice::from_ref(holder),
            Inner::Many(many) => &many.list,
        }
    }
}

impl Holders {
    /// The permits that the holders take together.
    fn permits(&self) -> u64 {
        match &self.0 {
            Inner::None => 0,
            Inner::One(holder) => u64::from(holder.mode.permits()),
            Inner::Many(many) => many.permits,
        }
    }

    /// The holder with this index.
    pub(crate) fn at(&mut self, index: usize) -> &mut Holder {
        match &mut self.0 {
            Inner::None => unreachable!("there is no holder"),
            Inner::One(holder) => holder,
            Inner::Many(many) => &mut many.list[index],
        }
    }

    /// Adds the latest grant.
    pub(crate) fn push(&mut self, holder: Holder) {
        self.0 = match core::mem::take(&mut self.0) {
            Inner::None => Inner::One(holder),
            Inner::One(first) => Many::of([first, holder].into()),
            Inner::Many(mut many) => {
                many.permits += u64::from(holder.mode.permits());
                many.list.push(holder);
                Inner::Many(many)
            }
        };
    }

    /// Removes the holder with this index.
    pub(crate) fn remove(&mut self, index: usize) -> Holder {
        match core::mem::take(&mut self.0) {
            Inner::None => unreachable!("there is no holder"),
            Inner::One(holder) => holder,
            Inner::Many(mut many) => {
                let holder = many.list.remove(index);
                many.permits -= u64::from(holder.mode.permits());
                self.0 = match many.list.len() {
                    1 => Inner::One(many.list.remove(0)),
                    _ => Inner::Many(many),
                };
                holder
            }
        }
    }
}

impl Many {
    fn of(list: Vec<Holder>) -> Inner {
        let permits = list.iter().map(|holder| u64::from(holder.mode.permits())).sum();
        Inner::Many(Box::new(Many { permits, list }))
    }
}

impl From<Vec<Holder>> for Holders {
    fn from(mut holders: Vec<Holder>) -> Holders {
        Holders(match (holders.pop(), holders.is_empty()) {
            (None, _) => Inner::None,
            (Some(holder), true) => Inner::One(holder),
            (Some(holder), false) => {
                holders.push(holder);
                Many::of(holders)
            }
        })
    }
}

impl Serialize for Holders {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

/// The waiters for a lock, first come first. Most locks have none, and need 8 bytes for that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "VecDeque<Waiter>")]
#[expect(
    clippy::box_collection,
    reason = "a queue without waiters, of which there are millions, needs 8 bytes and not 32"
)]
pub struct Queue(Option<Box<VecDeque<Waiter>>>);

impl Deref for Queue {
    type Target = VecDeque<Waiter>;

    fn deref(&self) -> &VecDeque<Waiter> {
        static EMPTY: VecDeque<Waiter> = VecDeque::new();
        self.0.as_deref().unwrap_or(&EMPTY)
    }
}

impl Queue {
    /// Changes the waiters.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut VecDeque<Waiter>) -> R) -> R {
        let result = change(self.0.get_or_insert_default());
        if self.is_empty() {
            self.0 = None;
        }
        result
    }
}

impl From<VecDeque<Waiter>> for Queue {
    fn from(waiters: VecDeque<Waiter>) -> Queue {
        Queue((!waiters.is_empty()).then(|| Box::new(waiters)))
    }
}

impl Serialize for Queue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    use super::{ClaimIndex, Details, Holder, Holders, Lock, Queue, Waiter};
    use crate::invariants::states::id;
    use crate::lock::{Mode, Token};

    fn holder(session: u64, mode: Mode) -> Holder {
        Holder { session: id(session), token: Token(session), sequence: None, mode, holds: 1, details: Details::NONE }
    }

    fn waiter(session: u64) -> Waiter {
        Waiter { session: id(session), sequence: None, mode: Mode::SHARED, details: Details::NONE }
    }

    #[test]
    fn lists_of_equal_claims_are_equal() {
        let mut holders = Holders::default();
        for session in 1..=3 {
            holders.push(holder(session, Mode::SHARED));
            assert_eq!(holders, Holders::from((1..=session).map(|at| holder(at, Mode::SHARED)).collect::<Vec<_>>()));
        }
        assert_eq!(holders.remove(1).session, id(2));
        let left = [1, 3].map(|session| holder(session, Mode::SHARED));
        assert_eq!((&holders, holders.permits()), (&Holders::from(left.to_vec()), 2));
        assert_eq!(holders.remove(1).session, id(3));
        assert_eq!(holders, Holders::from([holder(1, Mode::SHARED)].to_vec()));
        assert_eq!(holders.remove(0).session, id(1));
        assert_eq!(holders, Holders::default());
        let mut queue = Queue::default();
        queue.change(|waiters| waiters.push_back(waiter(1)));
        assert_eq!(queue, Queue::from(VecDeque::from([waiter(1)])));
        queue.change(VecDeque::pop_front);
        assert_eq!((&queue, queue.len()), (&Queue::default(), 0));
    }

    #[test]
    fn claims_that_conflict_are_not_admitted_together() {
        let semaphore = |permits| Mode::semaphore(permits, 5).unwrap();
        for (held, asked, admitted) in [
            (&[][..], Mode::EXCLUSIVE, true),
            (&[Mode::EXCLUSIVE], Mode::EXCLUSIVE, false),
            (&[Mode::EXCLUSIVE], Mode::SHARED, false),
            (&[Mode::SHARED], Mode::EXCLUSIVE, false),
            (&[Mode::SHARED, Mode::SHARED], Mode::SHARED, true),
            (&[semaphore(2)], semaphore(3), true),
            (&[semaphore(2), semaphore(2)], semaphore(2), false),
            (&[semaphore(2), semaphore(2)], semaphore(1), true),
        ] {
            let holders: Vec<Holder> = (1..).zip(held).map(|(session, mode)| holder(session, *mode)).collect();
            let lock = Lock { holders: holders.into(), queue: Queue::default() };
            assert_eq!(lock.has_room_for(asked), admitted, "{asked} beside {held:?}");
        }
    }

    #[test]
    fn claim_holds_or_waits() {
        let lock = Lock {
            holders: [holder(1, Mode::SHARED), holder(4, Mode::SHARED)].to_vec().into(),
            queue: VecDeque::from([waiter(2), waiter(3)]).into(),
        };
        let indices = [1, 4, 2, 3, 5].map(|session| lock.claim_index(id(session)));
        assert_eq!(lock.first_holder().map(|holder| holder.session), Some(id(1)));
        let expected =
            [ClaimIndex::Holds(0), ClaimIndex::Holds(1), ClaimIndex::Waits(0), ClaimIndex::Waits(1)].map(Some);
        assert_eq!((&indices[..4], indices[4]), (&expected[..], None));
    }

    #[test]
    fn claim_has_its_own_value() {
        let details = |value: &str| Details::new(&"k".into(), Some(value.into()));
        let held = Holder { details: details("held"), ..holder(1, Mode::EXCLUSIVE) };
        let waits = Waiter { details: details("waits"), ..waiter(2) };
        let lock = Lock { holders: Vec::from([held]).into(), queue: VecDeque::from([waits, waiter(3)]).into() };
        let values = [1, 2, 3, 4].map(|session| lock.value(id(session)).map(|value| value.as_str()));
        assert_eq!(values, [Some("held"), Some("waits"), None, None]);
    }

    #[test]
    fn lock_with_one_holder_takes_80_bytes() {
        assert_eq!(size_of::<Lock>(), 80);
    }
}
