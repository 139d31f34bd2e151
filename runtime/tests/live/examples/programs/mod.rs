//! The examples in other languages: each block is a program's middle. A [`Wrapper`] has what the document leaves to its
//! reader: a client, a database, a job.

mod go;
mod python;
mod sql;
mod typescript;

use std::process::Command;

use super::blocks::Block;
use super::blocks_of;
use crate::support::cluster::Cluster;
use crate::support::process::output;

pub use go::MODULE as GO_MODULE;

/// The documents with programs that are run here, and the programs' languages.
pub const DOCUMENTS: [(&str, &str); 7] = [
    ("README.md", "python"),
    ("clients/python/README.md", "python"),
    ("docs/fencing.md", "python"),
    ("clients/typescript/README.md", "ts"),
    (go::MODULE, "go"),
    (go::MODULE, "sql"),
    ("clients/python/README.md", "sql"),
];

/// What is put around a block.
struct Wrapper {
    /// How the block begins.
    begins: &'static str,
    before: &'static str,
    after: &'static str,
}

/// The blocks of all documents in this language, each with its wrapper, as whole programs.
fn wrapped(language: &str, wrappers: &[Wrapper]) -> Vec<(Block, String)> {
    let documents = DOCUMENTS.iter().filter(|(_, known)| *known == language);
    let blocks: Vec<Block> = documents.flat_map(|(document, _)| blocks_of(document, language)).collect();
    for wrapper in wrappers {
        assert!(
            blocks.iter().any(|block| block.text.starts_with(wrapper.begins)),
            "no block begins with {:?}",
            wrapper.begins
        );
    }
    let programs = blocks.into_iter().map(|block| {
        let fits: Vec<_> = wrappers.iter().filter(|wrapper| block.text.starts_with(wrapper.begins)).collect();
        let [wrapper] = fits[..] else { panic!("{}:{} has {} wrappers", block.document, block.line, fits.len()) };
        let program = format!("{}\n{}\n{}\n", wrapper.before, block.text, wrapper.after);
        (block, program)
    });
    programs.collect()
}

/// The same programs for this cluster.
fn programs(language: &str, wrappers: &[Wrapper], cluster: &Cluster) -> Vec<(Block, String)> {
    wrapped(language, wrappers).into_iter().map(|(block, program)| (block, on(cluster, &program))).collect()
}

/// The program with the addresses of the cluster in place of those of `palisade dev`.
fn on(cluster: &Cluster, program: &str) -> String {
    let all = cluster.endpoints().join(",");
    let program = program.replace("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403", &all);
    program.replace("127.0.0.1:7401,7402,7403", &all).replace("127.0.0.1:7401", &cluster.client_addr(1))
}

/// Runs a program to its end, which must be a success.
fn succeeds(block: &Block, command: &mut Command) {
    let ended = output(command);
    let (printed, reported) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{}:{}\n{}\n{printed}\n{reported}", block.document, block.line, block.text);
}
