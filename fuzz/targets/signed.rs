//! Decoders of signed fencing tokens, of what resources are given to verify them, and of the files of secret keys.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use palisade::grant_signer;
use palisade_fence::{Clock, Grant, KeyId, Root, RootKey, Signed, Signer, Terms, Verifier};
use tempfile::TempDir;

const CLUSTER: &str = "billing";
const EPOCH: u64 = 3;

fn root() -> RootKey {
    RootKey::from_seed([1; 32])
}

fn signer() -> Signer {
    let terms = Terms { cluster: CLUSTER.into(), epoch: EPOCH, not_before: 10, not_after: 20 };
    root().issue([2; 32], &terms).expect("terms that make sense")
}

/// A signed token, the public text of a key, or the file of a secret key; the first byte chooses.
pub(super) fn signed(data: &[u8]) -> bool {
    let Some((kind, data)) = data.split_first() else { return false };
    match (kind % 4, str::from_utf8(data)) {
        (0, Ok(text)) => token(text),
        (1, Ok(text)) => public_key(text),
        (2, _) => root_file(data),
        (3, _) => signer_file(data),
        _ => false,
    }
}

/// There is one text for each signed token. A grant that the key signs is verified, if it is of its cluster and epoch.
fn token(text: &str) -> bool {
    let mut verifier = Verifier::new(CLUSTER, [root().root().expect("a sound key")]).with_clock(Clock::At(15));
    let Ok(signed) = Signed::parse(text) else {
        let refusal = verifier.verify("report", text).expect_err("it is no signed token");
        assert!(!refusal.to_string().is_empty());
        return false;
    };
    assert_eq!(signed.to_string(), text);
    let Grant { cluster, epoch, key, .. } = &signed.grant;
    if let Ok(grant) = verifier.verify(key, text) {
        assert_eq!(grant, signed.grant);
    }
    let is_covered = cluster == CLUSTER && *epoch == EPOCH;
    assert_eq!(verifier.verify(key, &signer().sign_grant(&signed.grant)).is_ok(), is_covered, "{signed:?}");
    true
}

fn public_key(text: &str) -> bool {
    let id = text.parse::<KeyId>().inspect(|id| assert_eq!(id.to_string().parse(), Ok(*id)));
    let root = text.parse::<Root>().inspect(|root| assert_eq!(root.to_string(), text));
    id.is_ok() || root.is_ok()
}

/// A file as `palisade fence` writes it, with this content.
fn key_file(content: &[u8]) -> TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory");
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.path().join("key"));
    file.and_then(|mut file: File| file.write_all(content)).expect("a file in the temporary directory");
    directory
}

/// Loads a key, saves it, and loads it again: both files that were saved are the same.
fn saved_again<K, E: ToString>(
    content: &[u8],
    load: impl Fn(&Path) -> Result<K, E>,
    save: impl Fn(&K, &Path) -> Result<(), palisade_fence::KeyFileError>,
) -> Option<K> {
    let directory = key_file(content);
    let [loaded, once, twice] = ["key", "once", "twice"].map(|name| directory.path().join(name));
    let key = load(&loaded).map_err(|error| assert!(!error.to_string().is_empty())).ok()?;
    save(&key, &once).expect("a new file");
    let again = load(&once).unwrap_or_else(|error| panic!("saved, then refused: {}", error.to_string()));
    save(&again, &twice).expect("a new file");
    assert_eq!(fs::read(once).ok(), fs::read(twice).ok());
    Some(key)
}

fn root_file(content: &[u8]) -> bool {
    let key = saved_again(content, RootKey::load, RootKey::save);
    key.inspect(|key| drop(key.root())).is_some()
}

/// What a node that starts with the file would sign has the form of a signed token.
fn signer_file(content: &[u8]) -> bool {
    let key = saved_again(content, |path| grant_signer::check(path, None, false), Signer::save);
    key.inspect(|key| assert!(Signed::parse(&key.sign("report", 7, 3)).is_ok())).is_some()
}

pub(super) fn signed_seeds() -> Vec<Vec<u8>> {
    let file = |save: &dyn Fn(&Path) -> Result<(), palisade_fence::KeyFileError>| {
        let directory = key_file(b"");
        let path = directory.path().join("saved");
        save(&path).expect("a new file");
        fs::read(path).expect("the file")
    };
    let grant =
        |cluster: &str| Grant { cluster: cluster.into(), epoch: EPOCH, key: "report".into(), token: 7, session: 3 };
    let token = |cluster| signer().sign_grant(&grant(cluster)).into_bytes();
    let public = root().root().expect("a sound key");
    let seeds = [
        (0, token(CLUSTER)),
        (0, token("another")),
        (1, public.to_string().into_bytes()),
        (1, public.id().to_string().into_bytes()),
        (2, file(&|path| root().save(path))),
        (3, file(&|path| signer().save(path))),
    ];
    seeds.map(|(kind, content)| [vec![kind], content].concat()).into()
}
