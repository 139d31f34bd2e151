//! A store's server, as the experiment and the tests start it.

use std::sync::Arc;

use tokio::sync::OnceCell;

use super::objects::Objects;
use super::postgres::Postgres;
use super::{Kind, Store};
use crate::servers::{self, Cluster, Options};

/// A store's server; it ends with the value.
#[derive(Debug)]
pub struct StoreServer {
    kind: Kind,
    cluster: Cluster,
    table: OnceCell<()>,
}

impl StoreServer {
    /// Starts the server.
    ///
    /// # Errors
    /// As [`servers::start`].
    pub async fn start(kind: Kind, options: &Options) -> Result<StoreServer, servers::Error> {
        let cluster = servers::start(kind.server(), options).await?;
        Ok(StoreServer { kind, cluster, table: OnceCell::new() })
    }

    /// Which store it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The product and its version.
    #[must_use]
    pub fn version(&self) -> &str {
        self.cluster.version()
    }

    /// `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.cluster.address(0)
    }

    /// A client with a connection of its own. The first makes the table.
    ///
    /// # Errors
    /// The server could not be reached, or has refused.
    pub async fn open(&self) -> Result<Arc<dyn Store>, String> {
        match self.kind {
            Kind::Postgres => {
                let store = Postgres::connect(self.address()).await?;
                self.table.get_or_try_init(|| store.make_table()).await?;
                Ok(Arc::new(store))
            }
            Kind::Objects => Ok(Arc::new(Objects::new(self.address())?)),
        }
    }
}
