//! A fence and its file: what it keeps over restarts, and what it refuses to begin with.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use palisade_fence::{Clock, Decision, Fence, KeyFileError, OpenError, RootKey, Signer, Terms, Verifier};
use tempfile::TempDir;

const NOW: u64 = 1_700_000_000;

fn root() -> RootKey {
    RootKey::from_seed([1; 32])
}

fn terms(epoch: u64) -> Terms {
    Terms { cluster: "billing".into(), epoch, not_before: NOW - 10, not_after: NOW + 10 }
}

fn signer(epoch: u64) -> Signer {
    root().issue([2; 32], &terms(epoch)).unwrap()
}

fn verifier() -> Verifier {
    Verifier::new("billing", [root().root().unwrap()]).with_clock(Clock::At(NOW))
}

fn fence_path() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fence");
    (directory, path)
}

fn refused(fence: &mut Fence, key: &str, signed: &str) -> &'static str {
    fence.admit(key, signed).expect_err("it must be refused").code()
}

/// Goal: the highest token is durable when a token is admitted, so that a restart forgets nothing.
#[test]
fn highest_token_survives_a_restart() {
    let (_directory, path) = fence_path();
    let mut fence = Fence::create(&path, verifier()).unwrap();
    assert_eq!(fence.admit("report", &signer(0).sign("report", 7, 3)).unwrap().decision, Decision::Raise);
    assert_eq!(fence.admit("other", &signer(0).sign("other", 5, 2)).unwrap().decision, Decision::Raise);
    drop(fence);

    let mut fence = Fence::open(&path, verifier()).unwrap();
    assert_eq!((fence.highest("report"), fence.highest("other"), fence.highest("third")), (Some(7), Some(5), None));
    assert_eq!(refused(&mut fence, "report", &signer(0).sign("report", 6, 2)), "stale_token");
    assert_eq!(refused(&mut fence, "report", &signer(0).sign("report", 7, 4)), "token_of_another_session");
    assert_eq!(fence.admit("report", &signer(0).sign("report", 7, 3)).unwrap().decision, Decision::Repeat);
    assert_eq!(fence.admit("report", &signer(0).sign("report", u64::MAX, 9)).unwrap().decision, Decision::Raise);
}

/// Goal: after a restore of the cluster, no grant of the old cluster counts, for any key, also after
/// a restart of the resource.
#[test]
fn higher_epoch_ends_all_grants_of_the_lower() {
    let (_directory, path) = fence_path();
    let mut fence = Fence::create(&path, verifier()).unwrap();
    let _ = fence.admit("report", &signer(0).sign("report", 900, 3)).unwrap();
    let _ = fence.admit("other", &signer(1).sign("other", 1, 9)).unwrap();
    drop(fence);
    let mut fence = Fence::open(&path, verifier()).unwrap();
    assert_eq!((fence.epoch(), fence.highest("report")), (1, None));
    assert_eq!(refused(&mut fence, "report", &signer(0).sign("report", 901, 4)), "stale_epoch");
    assert_eq!(refused(&mut fence, "third", &signer(0).sign("third", 902, 4)), "stale_epoch");
    let _ = fence.admit("report", &signer(1).sign("report", 2, 8)).unwrap();
}

/// Goal: a lost file never becomes an empty memory by itself.
#[test]
fn missing_file_is_an_error_and_a_new_start_is_explicit() {
    let (_directory, path) = fence_path();
    assert!(matches!(Fence::open(&path, verifier()), Err(OpenError::Missing(_))));
    assert!(!path.exists());
    drop(Fence::create(&path, verifier()).unwrap());
    assert!(matches!(Fence::create(&path, verifier()), Err(OpenError::Exists(_))));
    drop(Fence::open(&path, verifier()).unwrap());
    fs::remove_file(&path).unwrap();
    assert!(matches!(Fence::open(&path, verifier()), Err(OpenError::Missing(_))));
}

/// Goal: every changed bit, every missing and every additional byte of the file is noticed.
#[test]
fn damaged_file_is_an_error() {
    let (_directory, path) = fence_path();
    let mut fence = Fence::create(&path, verifier()).unwrap();
    let _ = fence.admit("report", &signer(0).sign("report", 7, 3)).unwrap();
    drop(fence);
    let good = fs::read(&path).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
    damaged.extend((0..good.len() * 8).map(|bit| {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    }));
    damaged.push([good.as_slice(), &[0]].concat());
    for bytes in damaged {
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(Fence::open(&path, verifier()), Err(OpenError::Damaged { .. })), "{bytes:02x?}");
    }
    fs::write(&path, &good).unwrap();
    assert_eq!(Fence::open(&path, verifier()).unwrap().highest("report"), Some(7));
}

/// Goal: two fences on one file would not see one another's tokens.
#[test]
fn second_fence_on_the_same_file_is_refused() {
    let (_directory, path) = fence_path();
    let first = Fence::create(&path, verifier()).unwrap();
    assert!(matches!(Fence::open(&path, verifier()), Err(OpenError::InUse(_))));
    assert!(matches!(Fence::create(&path, verifier()), Err(OpenError::InUse(_))));
    let link = path.with_extension("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(Fence::open(&link, verifier()), Err(OpenError::InUse(_))));
    drop(first);
    let mut linked = Fence::open(&link, verifier()).unwrap();
    let _ = linked.admit("report", &signer(0).sign("report", 7, 3)).unwrap();
    drop(linked);
    assert_eq!(Fence::open(&path, verifier()).unwrap().highest("report"), Some(7));
}

#[test]
fn file_of_another_cluster_is_refused() {
    let (_directory, path) = fence_path();
    drop(Fence::create(&path, verifier()).unwrap());
    let other = Verifier::new("test", [root().root().unwrap()]);
    assert!(matches!(Fence::open(&path, other), Err(OpenError::OtherCluster { .. })));
}

/// Goal: a token that cannot be kept is not admitted, and what was kept counts on.
#[test]
fn token_that_cannot_be_kept_is_not_admitted() {
    let (_directory, path) = fence_path();
    let mut fence = Fence::create(&path, verifier()).unwrap();
    let _ = fence.admit("report", &signer(0).sign("report", 7, 3)).unwrap();
    // The new content is written to this name first.
    let aside = path.with_extension("tmp");
    fs::create_dir(&aside).unwrap();
    assert_eq!(refused(&mut fence, "report", &signer(0).sign("report", 8, 4)), "not_persisted");
    assert_eq!(fence.admit("report", &signer(0).sign("report", 7, 3)).unwrap().decision, Decision::Repeat);
    fs::remove_dir(&aside).unwrap();
    assert_eq!(fence.admit("report", &signer(0).sign("report", 8, 4)).unwrap().decision, Decision::Raise);
}

/// Goal: an unfinished write, as a crash leaves it, changes nothing.
#[test]
fn unfinished_write_is_ignored() {
    let (_directory, path) = fence_path();
    let mut fence = Fence::create(&path, verifier()).unwrap();
    let _ = fence.admit("report", &signer(0).sign("report", 7, 3)).unwrap();
    drop(fence);
    fs::write(path.with_extension("tmp"), b"PALF").unwrap();
    let mut fence = Fence::open(&path, verifier()).unwrap();
    assert_eq!(refused(&mut fence, "report", &signer(0).sign("report", 6, 2)), "stale_token");
    let _ = fence.admit("report", &signer(0).sign("report", 8, 4)).unwrap();
}

/// Goal: a certificate that was verified once still ends, and its key can still be refused.
#[test]
fn remembered_certificate_still_ends() {
    let (_directory, path) = fence_path();
    let mut fence = Fence::create(&path, verifier()).unwrap();
    let signed = signer(0).sign("report", 7, 3);
    let _ = fence.admit("report", &signed).unwrap();
    // The last characters are of the root's signature.
    let (start, end) = signed.split_at(signed.len() - 20);
    let other_signature = format!("{start}{}{}", if end.starts_with('A') { 'B' } else { 'A' }, &end[1..]);
    assert_eq!(refused(&mut fence, "report", &other_signature), "forged_certificate");
    fence.verifier_mut().set_clock(Clock::At(NOW + 10));
    assert_eq!(refused(&mut fence, "report", &signed), "expired");
    fence.verifier_mut().set_clock(Clock::None);
    let _ = fence.admit("report", &signed).unwrap();
    drop(fence);
    let mut fence = Fence::open(&path, verifier().refusing(signer(0).id())).unwrap();
    assert_eq!(refused(&mut fence, "report", &signed), "refused_key");
}

/// Goal: in a rotation, the tokens of both keys and of both roots count.
#[test]
fn rotation_overlaps() {
    let (_directory, path) = fence_path();
    let next_root = RootKey::from_seed([9; 32]);
    let roots = [root().root().unwrap(), next_root.root().unwrap()];
    let verifier = Verifier::new("billing", roots).with_clock(Clock::At(NOW));
    let mut fence = Fence::create(&path, verifier).unwrap();
    let next_key = root().issue([3; 32], &terms(0)).unwrap();
    let certified_by_next = next_root.issue([4; 32], &terms(0)).unwrap();
    let signers = [signer(0), next_key, certified_by_next];
    for (token, signer) in (1..10).zip(signers.iter().cycle()) {
        let _ = fence.admit("report", &signer.sign("report", token, token)).unwrap();
    }
}

/// Goal: a secret that others can read is not used, and no file of a key is replaced.
#[test]
fn key_files_are_private() {
    let directory = tempfile::tempdir().unwrap();
    let (root_file, key_file) = (directory.path().join("root"), directory.path().join("key"));
    root().save(&root_file).unwrap();
    signer(0).save(&key_file).unwrap();
    assert!(matches!(root().save(&root_file), Err(KeyFileError::Io { .. })));
    for file in [&root_file, &key_file] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(RootKey::load(&root_file).unwrap().root(), root().root());
    let loaded = Signer::load(&key_file).unwrap();
    assert_eq!(loaded.sign("report", 7, 3), signer(0).sign("report", 7, 3));
    // Neither is taken for the other, nor a secret with the certificate of another key.
    assert!(matches!(Signer::load(&root_file), Err(KeyFileError::Content { .. })));
    assert!(matches!(RootKey::load(&key_file), Err(KeyFileError::Content { .. })));
    let other = directory.path().join("other");
    root().issue([3; 32], &terms(0)).unwrap().save(&other).unwrap();
    let line = |text: &str, name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let (one, two) = (fs::read_to_string(&key_file).unwrap(), fs::read_to_string(&other).unwrap());
    fs::write(&other, two.replace(&line(&two, "certificate"), &line(&one, "certificate"))).unwrap();
    assert!(matches!(Signer::load(&other), Err(KeyFileError::Content { .. })));
    for mode in [0o640, 0o604, 0o620] {
        fs::set_permissions(&key_file, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(Signer::load(&key_file), Err(KeyFileError::Mode { .. })), "{mode:o}");
    }
}

/// Goal: a root issues no certificate that never counts.
#[test]
fn terms_must_make_sense() {
    let issue = |terms: &Terms| root().issue([2; 32], terms).is_ok();
    assert!(issue(&terms(0)));
    assert!(!issue(&Terms { not_after: NOW - 10, ..terms(0) }));
    assert!(!issue(&Terms { cluster: String::new(), ..terms(0) }));
    assert!(issue(&Terms { cluster: "c".repeat(255), ..terms(0) }));
    assert!(!issue(&Terms { cluster: "c".repeat(256), ..terms(0) }));
}

/// Prints signatures and verifications a second: `cargo test --release -p palisade-fence --test fence
/// -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a check"]
fn measure() {
    const COUNT: u32 = 20_000;
    let (signer, mut verifier) = (signer(0), verifier());
    let begin = std::time::Instant::now();
    let signed: Vec<String> = (0..COUNT).map(|token| signer.sign("reports/nightly", token.into(), 3)).collect();
    let signing = begin.elapsed();
    let begin = std::time::Instant::now();
    for text in &signed {
        verifier.verify("reports/nightly", text).unwrap();
    }
    let verifying = begin.elapsed();
    println!(
        "{} bytes of text; {:?} a signature, {:?} a verification",
        signed[0].len(),
        signing / COUNT,
        verifying / COUNT
    );
}
