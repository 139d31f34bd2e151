//! `palisade fence`: the keys of signed fencing tokens, and the check that a resource makes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use palisade_fence::{Admitted, Decision, KeyFileError, KeyId, OpenError, RootKey, Terms, Verifier, unix_time};
use rand::TryRngCore;
use rand::rngs::OsRng;

use super::print_error;

/// Exit code: the token is refused.
const EXIT_REFUSED: u8 = 77;
/// How long before its issue a certificate begins, in seconds: resources' clocks may be behind.
const CLOCK_TOLERANCE: u64 = 3600;

/// Make the keys of signed fencing tokens, and verify a token as a resource does
#[derive(Debug, Args)]
pub(super) struct Fence {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a root key, on a machine that is not part of the cluster, and print its public key,
    /// which resources are given
    Root {
        /// The file to write, with mode 0600; an existing file is not replaced
        file: PathBuf,
    },
    Issue(Issue),
    Verify(Verify),
}

/// Make a signing key for a node, certified by a root, for `palisade serve --sign-grants`
#[derive(Debug, Args)]
struct Issue {
    /// File of the root key
    #[arg(long, value_name = "FILE")]
    root: PathBuf,
    /// The cluster's name. No two clusters below one root may have the same name
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// The cluster's restore epoch: one higher after each restore of a backup, also of the same one
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
    /// For how many days from now the certificate is valid. It begins an hour before now
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: u64,
    /// The file to write, with mode 0600; an existing file is not replaced
    file: PathBuf,
}

/// Verify a signed token as a resource does
///
/// Exit code 0: the token is genuine, and with --state higher than all before it, or the last one
/// again; 77: it is refused; 74: the state's file cannot be used.
#[derive(Debug, Args)]
struct Verify {
    /// Public key of a trusted root; may be repeated
    #[arg(long, value_name = "KEY", required = true)]
    root: Vec<palisade_fence::Root>,
    /// The cluster's name
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Key of the lock that protects the resource
    #[arg(long, value_name = "KEY")]
    key: String,
    /// ID of a signing key that is stolen; may be repeated
    #[arg(long, value_name = "ID")]
    refuse: Vec<KeyId>,
    /// File in which the resource keeps the highest token; without it, only the signatures are
    /// verified
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// With --state: create the file, for a resource that has never been used
    #[arg(long, requires = "state")]
    new: bool,
    /// The signed token
    #[arg(env = "PALISADE_SIGNED_TOKEN", hide_env_values = true)]
    signed: String,
}

/// Why a command failed, and its exit code.
struct Failed(u8, String);

impl Fence {
    pub(super) fn run(self) -> ExitCode {
        let done = match self.action {
            Action::Root { file } => root(&file),
            Action::Issue(issue) => issue.run(),
            Action::Verify(verify) => verify.run(),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(Failed(code, why)) => {
                print_error(why);
                ExitCode::from(code)
            }
        }
    }
}

fn root(file: &Path) -> Result<(), Failed> {
    let key = RootKey::from_seed(seed()?);
    let root = key.root().map_err(|error| Failed(70, error.to_string()))?;
    key.save(file)?;
    outln!("{root}");
    Ok(())
}

impl Issue {
    fn run(self) -> Result<(), Failed> {
        let root = RootKey::load(&self.root)?;
        let (now, cluster, epoch) = (unix_time(), self.cluster, self.epoch);
        let not_before = now.saturating_sub(CLOCK_TOLERANCE);
        let terms = Terms { cluster, epoch, not_before, not_after: now + self.days * 86_400 };
        let signer = root.issue(seed()?, &terms).map_err(|error| Failed(64, error.to_string()))?;
        signer.save(&self.file)?;
        let (id, root, file) = (signer.id(), signer.certificate().root, self.file.display());
        let Terms { cluster, .. } = terms;
        outln!(
            "key {id}, certified by root {root} for cluster {cluster}, restore epoch {epoch}, {} days: {file}",
            self.days
        );
        Ok(())
    }
}

impl Verify {
    fn run(self) -> Result<(), Failed> {
        let verifier = self.refuse.into_iter().fold(Verifier::new(self.cluster, self.root), Verifier::refusing);
        let (grant, state) = match self.state {
            None => (verify(verifier, &self.key, &self.signed)?, "its signatures are valid"),
            Some(path) => {
                let open = if self.new { palisade_fence::Fence::create } else { palisade_fence::Fence::open };
                let Admitted { grant, decision } = open(path, verifier)?.admit(&self.key, &self.signed)?;
                let state = match decision {
                    Decision::Raise => "it is the highest so far",
                    Decision::Repeat => "it was admitted before, and is still the highest",
                };
                (grant, state)
            }
        };
        let palisade_fence::Grant { cluster, epoch, key, token, session } = grant;
        outln!("token {token} of session {session} for {key:?}, cluster {cluster}, restore epoch {epoch}: {state}");
        Ok(())
    }
}

fn verify(mut verifier: Verifier, key: &str, signed: &str) -> Result<palisade_fence::Grant, Failed> {
    Ok(verifier.verify(key, signed)?)
}

fn seed() -> Result<[u8; 32], Failed> {
    let mut seed = [0; 32];
    let failed = |error| Failed(71, format!("the system gives no random numbers: {error}"));
    OsRng.try_fill_bytes(&mut seed).map_err(failed)?;
    Ok(seed)
}

impl From<KeyFileError> for Failed {
    fn from(error: KeyFileError) -> Failed {
        Failed(74, error.to_string())
    }
}

impl From<OpenError> for Failed {
    fn from(error: OpenError) -> Failed {
        Failed(74, error.to_string())
    }
}

impl From<palisade_fence::Refusal> for Failed {
    fn from(refusal: palisade_fence::Refusal) -> Failed {
        let code = if matches!(refusal, palisade_fence::Refusal::NotPersisted { .. }) { 74 } else { EXIT_REFUSED };
        Failed(code, format!("refused ({}): {refusal}", refusal.code()))
    }
}
