//! What the handlers record in the audit log: administrative acts, before and after, and refusals.

use palisade_client::wire::{AddMember, Code, Failure, MemberChange, Op, ReplaceMember};
use tracing::warn;

use super::App;
use crate::audit::{Act, Client};

/// The administrative act that an operation is, if it is one.
pub(super) fn act(op: &Op) -> Option<Act> {
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
        self.audit.is_some() && act(op).is_some()
    }

    /// Does an administrative act. With an audit log the intent is durable before, and the result is
    /// recorded after; if the intent cannot be written, nothing is done.
    pub(super) async fn administer<T>(
        &self,
        act: Act,
        done: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let Some(audit) = &self.audit else { return done.await };
        let intent = audit.intend(act, self.client()).await.map_err(|why| {
            let principal = self.principal.as_str();
            warn!(principal, error = why, "refused an administrative request: the audit log cannot be written");
            Failure::new(Code::AuditUnavailable, format!("the audit log cannot be written: {why}; nothing was done"))
        })?;
        let result = done.await;
        let code = result.as_ref().err().and_then(|failure| serde_json::to_value(failure.error).ok());
        audit.answered(intent, code.as_ref().and_then(serde_json::Value::as_str).unwrap_or("done"));
        result
    }

    /// Records that this node refused what the client may not do.
    pub(super) fn record_refusal(&self, why: &str) {
        if let Some(audit) = &self.audit {
            audit.refused(self.client(), why);
        }
    }

    fn client(&self) -> Client {
        Client { principal: self.principal.clone(), address: self.remote }
    }
}
