//! The fenced blocks of the documents, in the languages that a reader can run.

use std::fs;
use std::path::{Path, PathBuf};

/// The languages of blocks that a reader pastes somewhere. `console` has prompts and output, and is not pasted.
const RUNNABLE: [&str; 14] = [
    "sh",
    "bash",
    "shell",
    "console",
    "python",
    "py",
    "ts",
    "typescript",
    "js",
    "javascript",
    "go",
    "golang",
    "sql",
    "java",
];

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The document's path from the root of the repository.
    pub document: String,
    /// The line of its fence, from 1.
    pub line: usize,
    /// What stands behind the fence.
    pub language: String,
    /// The lines between the fences.
    pub text: String,
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace")
}

/// Every runnable block of the project's documents.
pub fn all() -> Vec<Block> {
    let mut documents = vec![root().join("README.md")];
    for folder in ["docs", "packaging", "clients/go", "clients/python", "clients/typescript", "fuzz"] {
        collect(&root().join(folder), &mut documents);
    }
    documents.sort();
    let blocks = documents.iter().flat_map(|document| {
        let name = document.strip_prefix(root()).unwrap().display().to_string();
        fenced(&name, &fs::read_to_string(document).unwrap())
    });
    blocks.filter(|block| RUNNABLE.contains(&block.language.as_str())).collect()
}

fn collect(folder: &Path, documents: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let is_installed = entry.ends_with("node_modules") || entry.is_symlink();
        if entry.is_dir() && !is_installed {
            collect(&entry, documents);
        } else if entry.extension().is_some_and(|extension| extension == "md") {
            documents.push(entry);
        }
    }
}

/// The fenced blocks of a text.
pub fn fenced(document: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((fence, line)) = lines.next() {
        let Some(language) = fence.trim_start().strip_prefix("```") else { continue };
        assert!(fence.starts_with("```"), "{document}:{line}: an indented fence");
        let text: Vec<&str> = lines.by_ref().map(|(text, _)| text).take_while(|text| *text != "```").collect();
        blocks.push(Block {
            document: document.to_owned(),
            line,
            language: language.to_owned(),
            text: text.join("\n"),
        });
    }
    blocks
}
