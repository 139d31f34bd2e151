//! The handlers' records in the audit log: administrative acts, before and after, and refusals.

use palisade_client::wire::{
    AccessVerdict, AddMember, Answer, Code, Consistency, Failure, MemberChange, Op, ReplaceMember,
};
use palisade_spec::lock::Right;
use tracing::warn;

use super::App;
use crate::audit::{Act, Audit, Client};
use crate::core::{Query, Request, check_access};

/// The result of an act that was not begun, because its client hung up before.
const ABANDONED: &str = "abandoned";

/// The durable intent of an administrative act. It gets one result: that of the act, or `abandoned`.
pub(super) struct Intent {
    audit: Audit,
    number: u64,
    result: String,
}

impl Drop for Intent {
    fn drop(&mut self) {
        self.audit.answered(self.number, &self.result);
    }
}

/// Records the result of an act: `done`, or the code of the failure.
pub(super) fn answered(intent: Option<Intent>, result: Result<(), &Failure>) {
    let Some(mut intent) = intent else { return };
    let code = result.err().and_then(|failure| serde_json::to_value(failure.error).ok());
    intent.result = code.as_ref().and_then(serde_json::Value::as_str).unwrap_or("done").to_owned();
}

/// The administrative act that an operation is, if it is one.
fn act(op: &Op) -> Option<Act> {
    Some(match op {
        Op::Break { key, order } => Act::Break { key: key.clone(), token: order.token, reason: order.reason.clone() },
        Op::SetAccess(rules) => Act::SetAccess { revision: rules.revision },
        Op::ChangeMembers(change) => {
            let (change, member) = match change {
                MemberChange::Add(AddMember { id, .. }) => ("add", *id),
                MemberChange::Promote { id } => ("promote", *id),
                MemberChange::Remove { id } => ("remove", *id),
                MemberChange::Replace(ReplaceMember { id, .. }) => ("replace", *id),
            };
            Act::ChangeMembers { change, member }
        }
        Op::Transfer(transfer) => Act::Transfer { to: transfer.to },
        Op::OpenSession(_)
        | Op::KeepAlive { .. }
        | Op::CloseSession { .. }
        | Op::ShowSession { .. }
        | Op::Acquire { .. }
        | Op::Release { .. }
        | Op::Withdraw { .. }
        | Op::Proclaim { .. }
        | Op::ShowLock { .. }
        | Op::ListLocks(_)
        | Op::ShowRecord { .. }
        | Op::ListRecords(_)
        | Op::Transact { .. }
        | Op::ShowAccess
        | Op::TestAccess(_)
        | Op::Watch(_)
        | Op::Unwatch { .. }
        | Op::Status => return None,
    })
}

impl App {
    /// Whether the audit log must have the intent of an operation before it is done.
    pub(super) fn is_audited(&self, op: &Op) -> bool {
        self.audited(op).is_some()
    }

    /// The act whose intent the audit log must have before an operation is done, if it is one and this node has an audit
    /// log.
    pub(super) fn audited(&self, op: &Op) -> Option<Act> {
        self.audit.as_ref().and_then(|_| act(op))
    }

    /// Refuses an act for which the client lacks the right, so that it has no intent. The rules that this node has
    /// applied may be old: if they deny the act, the leader's present rules decide. They may permit what the core then
    /// denies, which decides last: such an act has an intent, and the result `denied`.
    pub(super) async fn may_do(&self, act: &Act) -> Result<(), Failure> {
        let (right, key) = match act {
            Act::Break { key, .. } => (Right::Break, key.as_str()),
            // A node may join, and come back with a new directory, under its own number.
            Act::ChangeMembers { change: "add" | "replace", member }
                if self.principal.as_str() == format!("node/{member}") =>
            {
                return Ok(());
            }
            Act::SetAccess { .. }
            | Act::ChangeMembers { .. }
            | Act::Transfer { .. }
            | Act::TakeSnapshot
            | Act::ReadSnapshot => (Right::Admin, ""),
        };
        if check_access(&self.core.view().access(), &self.principal, right, key).is_ok() {
            return Ok(());
        }
        let query = Query::Permits { principal: self.principal.clone(), right, key: key.to_owned() };
        let read = Request::Read(query, Consistency::Linearizable, self.principal.clone());
        match self.submit(read, 0).await?.answer_of_core().await? {
            Answer::AccessVerdict(AccessVerdict { permitted: false, why }) => Err(Failure::new(Code::Denied, why)),
            _ => Ok(()),
        }
    }

    /// Does an administrative act. With an audit log the intent is durable before, and the result is
    /// recorded after; if the intent cannot be written, nothing is done.
    pub(super) async fn administer<T>(
        &self,
        act: Act,
        done: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let intent = self.intend(act).await?;
        let result = done.await;
        answered(intent, result.as_ref().map(drop));
        result
    }

    /// Makes the intent of an administrative act durable; there is none without an audit log.
    pub(super) async fn intend(&self, act: Act) -> Result<Option<Intent>, Failure> {
        let Some(audit) = &self.audit else { return Ok(None) };
        let number = audit.intend(act, self.client()).await.map_err(|why| {
            let principal = self.principal.as_str();
            warn!(
                principal, error = why,
                "refused an administrative request: the audit log cannot be written. Free space in the directory of --audit, or \
                 repair its disk"
            );
            Failure::new(Code::AuditUnavailable, format!("the audit log cannot be written: {why}; nothing was done"))
        })?;
        Ok(Some(Intent { audit: audit.clone(), number, result: ABANDONED.to_owned() }))
    }

    /// Records that this node refused what the client may not do. Refusals of the same soon after have no record of
    /// their own.
    pub(super) fn record_refusal(&self, what: &str, why: &str) {
        if let Some(audit) = &self.audit {
            audit.refused(self.client(), what, why);
        }
    }

    fn client(&self) -> Client {
        Client { principal: self.principal.clone(), address: self.remote }
    }
}
