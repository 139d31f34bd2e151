//! A store's server, as the experiment and the tests start it.
//!
//! The object store (moto's server) tests the condition of a put and replaces the object in two
//! steps, and answers each request in a thread of its own. Between the steps another thread's put
//! can be accepted, and both are answered with 200: the compare-and-swap of [`objects`](super::objects)
//! would rest on nothing. Python seldom changes threads there, so tests alone do not show it. With an
//! interval of 1 µs between changes (`sys.setswitchinterval`), 5 of 100 rounds of 16 conditional puts
//! on one ETag had more than one winner; with one thread, none had.
//!
//! So the lab starts it with one thread, which makes the two steps one, as they are in S3. Python runs
//! the file `sitecustomize.py` of its path at the start; the lab's is [`ONE_THREAD`].

use std::sync::Arc;

use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::objects::Objects;
use super::postgres::Postgres;
use super::{Kind, Store};
use crate::servers::{self, Cluster, Options};

/// Makes the development server of Python's `werkzeug`, in which moto runs, answer one request at a time.
const ONE_THREAD: &str = include_str!("one_thread.py");

/// A store's server; it ends with the value.
#[derive(Debug)]
pub struct Running {
    kind: Kind,
    cluster: Cluster,
    table: OnceCell<()>,
    /// Python's file that sets the number of threads.
    _python: Option<TempDir>,
}

impl Running {
    /// Starts the server.
    ///
    /// # Errors
    /// As [`servers::start`].
    pub async fn start(kind: Kind, options: &Options) -> Result<Running, servers::Error> {
        let mut options = options.clone();
        let python = match kind {
            Kind::Objects => Some(one_thread().map_err(|error| servers::Error::Setup {
                what: "the object store's file `sitecustomize.py`".to_owned(),
                output: error.to_string(),
            })?),
            Kind::Postgres => None,
        };
        if let Some(directory) = &python {
            options.env.push(("PYTHONPATH".to_owned(), directory.path().display().to_string()));
        }
        let cluster = servers::start(kind.server(), &options).await?;
        Ok(Running { kind, cluster, table: OnceCell::new(), _python: python })
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

fn one_thread() -> std::io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("palisade-lab-python-").tempdir()?;
    std::fs::write(directory.path().join("sitecustomize.py"), ONE_THREAD)?;
    Ok(directory)
}
