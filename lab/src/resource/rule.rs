//! The rule of the fenced resource: a write carries a fencing token, and a token that is lower than
//! one that the resource has seen is stale.
//!
//! The rule needs no clock and no knowledge of the lock service. A token is *seen* when a write with
//! it was accepted; a refused token is not higher than one that was seen, so it adds nothing.

use clap::ValueEnum;

/// Whether the resource enforces the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// Stale tokens are refused.
    On,
    /// The unsafe baseline: stale tokens are counted, and their writes accepted.
    Off,
}

impl Fence {
    /// The value of `--fence`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fence::On => "on",
            Fence::Off => "off",
        }
    }
}

/// What happens to a write with the highest token seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SameToken {
    /// The present holder may write again with its own token.
    Allow,
    /// A token is good for one write.
    Refuse,
}

/// The resource's rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Whether it is enforced.
    pub fence: Fence,
    /// What it says of the highest token itself.
    pub same_token: SameToken,
}

/// What the rule says about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The write is accepted.
    Accept {
        /// A higher token was seen before: only an unfenced resource accepts such a write.
        stale: bool,
    },
    /// The write is refused.
    Refuse {
        /// The highest token seen.
        seen: u64,
    },
}

impl Rule {
    /// Decides about a write with the token `got`, after `seen` was the highest.
    #[must_use]
    pub fn decide(self, seen: Option<u64>, got: u64) -> Decision {
        let Some(seen) = seen else { return Decision::Accept { stale: false } };
        let refused = match self.same_token {
            SameToken::Allow => got < seen,
            SameToken::Refuse => got <= seen,
        };
        match self.fence {
            Fence::On if refused => Decision::Refuse { seen },
            _ => Decision::Accept { stale: got < seen },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPT: Decision = Decision::Accept { stale: false };
    const STALE: Decision = Decision::Accept { stale: true };

    fn refuse(seen: u64) -> Decision {
        Decision::Refuse { seen }
    }

    #[test]
    fn the_rule_at_every_boundary() {
        // (highest seen, token, a token is good for one write, the holder may write again, no fence)
        let cases = [
            (None, 0, ACCEPT, ACCEPT, ACCEPT),
            (None, u64::MAX, ACCEPT, ACCEPT, ACCEPT),
            (Some(0), 0, refuse(0), ACCEPT, ACCEPT),
            (Some(0), 1, ACCEPT, ACCEPT, ACCEPT),
            (Some(7), 0, refuse(7), refuse(7), STALE),
            (Some(7), 6, refuse(7), refuse(7), STALE),
            (Some(7), 7, refuse(7), ACCEPT, ACCEPT),
            (Some(7), 8, ACCEPT, ACCEPT, ACCEPT),
            (Some(u64::MAX - 1), u64::MAX, ACCEPT, ACCEPT, ACCEPT),
            (Some(u64::MAX), u64::MAX - 1, refuse(u64::MAX), refuse(u64::MAX), STALE),
            (Some(u64::MAX), u64::MAX, refuse(u64::MAX), ACCEPT, ACCEPT),
        ];
        for (seen, got, once, again, unfenced) in cases {
            let decide = |fence, same_token| Rule { fence, same_token }.decide(seen, got);
            let case = format!("token {got} after {seen:?}");
            assert_eq!(decide(Fence::On, SameToken::Refuse), once, "{case}");
            assert_eq!(decide(Fence::On, SameToken::Allow), again, "{case}");
            assert_eq!(decide(Fence::Off, SameToken::Refuse), unfenced, "{case}");
            assert_eq!(decide(Fence::Off, SameToken::Allow), unfenced, "{case}");
        }
    }
}
