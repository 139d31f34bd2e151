//! From the command line to a lock service: `--backend`, `--endpoints` and the options.

use std::sync::Arc;

use super::{Backend, Error, Locks, Options, Renewal, etcd, etcd_lock, guarded, palisade, redis, redlock, zookeeper};

/// A lock service at these servers (`HOST:PORT`). Connections are made when they are needed: a server that cannot be
/// reached is an error of the first acquire.
///
/// # Errors
/// [`Error::Backend`] if there is no endpoint, or an option does not fit the backend.
pub fn connect(backend: Backend, endpoints: &[String], options: &Options) -> Result<Arc<dyn Locks>, Error> {
    let wrong = |reason: String| Err(Error::Backend { backend: backend.name(), reason });
    if endpoints.is_empty() {
        return wrong("no server is named; name at least one with --endpoints HOST:PORT".to_owned());
    }
    if !options.tokens.fits(backend) {
        return wrong(format!("its fencing tokens cannot be {}; use --tokens default", options.tokens));
    }
    Ok(match (backend, options.renewal) {
        (Backend::Redlock, _) if endpoints.len() < 3 => {
            return wrong(format!("a majority needs at least 3 servers, and {} are named", endpoints.len()));
        }
        (Backend::Redis, _) => Arc::new(redis::Redis::replicated(endpoints, options)?),
        (Backend::Redlock, _) => Arc::new(redlock::Redlock::new(endpoints, options)?),
        (Backend::Etcd, _) => Arc::new(etcd::Etcd::new(endpoints, options)),
        (Backend::EtcdLock, _) => Arc::new(etcd_lock::EtcdLock::new(endpoints, options)),
        (Backend::ZooKeeper, _) => Arc::new(zookeeper::ZooKeeper::new(endpoints, options)),
        (Backend::Palisade, Renewal::OnRequest) => Arc::new(palisade::Palisade::new(endpoints, options)),
        (Backend::Palisade, Renewal::Automatic) => Arc::new(guarded::Guarded::new(endpoints, options)),
    })
}
