//! Which flags of `run` each experiment takes. A flag that a named experiment does not take is refused; `--all` ignores
//! it where it does not fit, and does not print it in the page's command.

use clap::ValueEnum;

use super::Name;
use crate::dlock::Backend;

impl Name {
    /// Its name on the command line.
    #[must_use]
    pub fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The flags that it takes, beside `--backend`, `--palisade`, `--out`, `--render` and `--all`, which all experiments
    /// take.
    #[must_use]
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Name::Pause => &["fence", "signed", "rounds", "ttl", "pause", "metrics"],
            Name::Release => &["rounds", "metrics"],
            Name::Ttl => &["rounds", "ttl", "seed", "metrics"],
            Name::Renew => &["fence", "rounds", "ttl", "seed", "metrics"],
            Name::Work => &["rounds", "work", "metrics"],
            Name::Contention => &["contenders", "rate", "duration", "work", "seed", "metrics"],
            Name::Fairness => &["rate", "duration", "work", "seed", "metrics"],
            Name::Tokens => &["rounds", "keys", "duration", "seed", "metrics"],
            Name::FencedStores => &["fence", "rounds", "ttl", "pause", "seed", "metrics"],
            Name::Redlock => &["fence", "rounds", "metrics"],
            Name::Prediction => &[],
            Name::TenMillion => &["keys", "duration", "seed", "metrics"],
            Name::Peers => &["rounds", "window"],
            Name::Failover | Name::Clocks => &["fence", "rounds", "metrics"],
        }
    }

    /// Whether its clients connect to the leader alone, where they would spread over the servers otherwise: it measures how
    /// fast the lock service is. Palisade's clients find the leader by themselves.
    #[must_use]
    pub fn is_at_the_leader(self, backend: Backend) -> bool {
        let measures = matches!(self, Name::Contention | Name::Fairness | Name::Tokens | Name::Work);
        measures && matches!(backend, Backend::Etcd | Backend::EtcdLock)
    }

    /// Whether it takes a flag.
    #[must_use]
    pub fn takes(self, flag: &str) -> bool {
        self.flags().contains(&flag)
    }

    /// The lock services on which it runs.
    #[must_use]
    pub fn backends(self) -> Vec<Backend> {
        let fits = |backend: &Backend| match self {
            Name::Prediction => matches!(backend, Backend::Redis | Backend::Redlock | Backend::Palisade),
            // Redlock's numbers are no fencing tokens; etcd's lock service has those of etcd.
            Name::Tokens => !matches!(backend, Backend::Redlock | Backend::EtcdLock),
            Name::Redlock => *backend == Backend::Redlock,
            Name::Failover => *backend != Backend::Redlock,
            // Both kinds of locks of etcd use the same servers, and the same leases.
            Name::TenMillion | Name::Clocks => *backend != Backend::EtcdLock,
            _ => true,
        };
        Backend::ALL.into_iter().filter(fits).collect()
    }
}
