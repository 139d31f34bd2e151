//! `palisade-lab resource`: a process that holds one value per key and checks fencing tokens.
//!
//! It stands for whatever a lock protects: a file, a bucket, a ledger. It knows nothing of the lock
//! service, and compares the token of each write with the highest that it has accepted.
//!
//! | module | contents |
//! |---|---|
//! | [`rule`] | which token is stale |
//! | [`store`] | the values, owned by one thread |
//! | [`log`] | the log that makes accepted writes durable |
//! | [`api`] | the HTTP interface |
//! | [`signature`] | which tokens are the cluster's, if they must be signed |
//! | [`client`] | a client, for workers and experiments |

pub mod api;
pub mod client;
pub mod log;
pub mod rule;
pub mod signature;
pub mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use self::api::App;
use self::log::{Log, Recovered};
use self::rule::{Fence, Rule, SameToken};
use self::signature::Signatures;
use self::store::{Observers, Store};
use crate::history;
use crate::metrics::Metrics;

/// A resource that accepts a write only with a fencing token above all that it has seen
#[derive(Debug, clap::Args)]
pub struct Command {
    /// Address to listen on; port 0 takes a free port, which the first line of output names
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    addr: String,
    /// Refuse stale tokens (on), or count them and accept their writes (off: the unsafe baseline)
    #[arg(long, default_value = "on")]
    fence: Fence,
    /// Whether the present holder may write again with its own token
    #[arg(long, default_value = "refuse")]
    same_token: SameToken,
    /// Directory of the log. Without it, values and tokens are in memory only
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Rewrite the log with the values alone when it is longer than this, in bytes, and than twice what it must keep
    #[arg(long, value_name = "BYTES", default_value_t = log::COMPACT_AT, requires = "data")]
    compact_at: u64,
    /// Accept only tokens that a cluster has signed (docs/fencing.md), in the header X-Signed-Token:
    /// the public key of its root. The key of a write is the lock's key
    #[arg(long, value_name = "ROOT", requires = "cluster")]
    require_signature: Vec<palisade_fence::Root>,
    /// With --require-signature: the cluster's name
    #[arg(long, value_name = "NAME", requires = "require_signature")]
    cluster: Option<String>,
    /// With --require-signature: the cluster's restore epoch. After a restore, the resource begins
    /// with another --data
    #[arg(long, value_name = "N", default_value_t = 0, requires = "require_signature")]
    epoch: u64,
    /// Record the accesses in a new file, in the format of docs/conformance/histories.md
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// The line that the resource prints when it accepts connections.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Listening {
    /// Its address.
    pub listening: SocketAddr,
}

impl Command {
    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// The address or a file is not usable, or the log failed.
    pub async fn run(self) -> Result<ExitCode, String> {
        let recovered = self.data.as_deref().map(|data| Log::open(data, self.compact_at)).transpose()?;
        let (entries, log) = match recovered {
            Some(Recovered { log, entries, cut }) => {
                if cut > 0 {
                    eprintln!("palisade-lab: cut {cut} bytes of a write that was never answered from the log's end");
                }
                (entries, Some(log))
            }
            None => (Vec::new(), None),
        };
        let recorder = self.history.as_deref().map_or_else(|| Ok(history::discard()), history::record_to)?;
        let metrics = Arc::new(Metrics::default());
        let (stale_accepted, untrusted) = (Counter::default(), Counter::default());
        let rule = Rule { fence: self.fence, same_token: self.same_token };
        let observers =
            Observers { metrics: metrics.clone(), stale_accepted: stale_accepted.clone(), recorder: recorder.clone() };
        let (store, ended) = Store::start(entries, log, rule, observers);
        let signatures = self.cluster.map(|cluster| Signatures::new(cluster, self.require_signature, self.epoch));
        let metrics = metrics_text(metrics, stale_accepted, untrusted.clone());
        let app = App { store, untrusted, signatures: signatures.map(Arc::new), metrics };

        let listener = tokio::net::TcpListener::bind(&self.addr)
            .await
            .map_err(|error| format!("cannot listen on {}: {error}; name another --addr", self.addr))?;
        let listening = listener.local_addr().map_err(|error| error.to_string())?;
        println!("{}", serde_json::to_string(&Listening { listening }).map_err(|error| error.to_string())?);
        let serve = axum::serve(listener, api::router(app)).with_graceful_shutdown(crate::signals::shutdown()?);
        let result = tokio::select! {
            served = serve => served.map_err(|error| error.to_string()),
            ended = ended => ended.unwrap_or_else(|_| Err("the resource's thread has panicked".to_owned())),
        };
        recorder.finish().map_err(|error| format!("cannot write the history: {error}"))?;
        result.map(|()| ExitCode::SUCCESS)
    }
}

/// The contract's metrics, how many stale writes an unfenced resource has accepted, and how many tokens were not trusted.
fn metrics_text(
    metrics: Arc<Metrics>,
    stale_accepted: Counter,
    untrusted: Counter,
) -> Arc<dyn Fn() -> String + Send + Sync> {
    let mut more = Registry::default();
    let help = "Writes accepted although a higher fencing token had been accepted: the fence is off";
    more.register("resource_stale_writes_accepted", help, stale_accepted);
    let help = "Writes refused because their token has no signature of the cluster that the resource trusts";
    more.register("resource_untrusted_token_rejections", help, untrusted);
    Arc::new(move || {
        let mut text = metrics.text();
        // `# EOF` ends the text, once.
        text.truncate(text.strip_suffix("# EOF\n").map_or(text.len(), str::len));
        let _ = encode(&mut text, &more);
        text
    })
}
