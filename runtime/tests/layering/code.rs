//! The workspace's source, without comments and tests.

use std::path::{Path, PathBuf};

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is around this package").to_path_buf()
}

/// A source file: its path from the workspace's root, and its code.
pub(crate) type Source = (String, String);

/// The source files below a folder of the workspace.
pub(crate) fn code_below(folder: &str) -> Vec<Source> {
    let mut folders = vec![workspace().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder exists") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_for_tests(&path) {
                let name = path.strip_prefix(workspace()).unwrap().display().to_string();
                files.push((name, code(&std::fs::read_to_string(&path).unwrap())));
            }
        }
    }
    assert!(files.len() > 5, "{folder} has {} files: its rules would look at nothing", files.len());
    files
}

fn is_for_tests(path: &Path) -> bool {
    let is_below_tests = path.parent().is_some_and(|folder| folder.ends_with("tests"));
    is_below_tests || ["tests.rs", "testing.rs", "failing.rs"].iter().any(|name| path.ends_with(name))
}

/// The code of a source file, without comments and without the items for tests that stand outside of others.
pub(crate) fn code(source: &str) -> String {
    // The unit tests end a file.
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut parts = source.split("\n#[cfg(test)]\n");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Another item ends with a semicolon, or with a brace at the beginning of a line.
        let is_short = part.find(';').is_some_and(|end| !part[..end].contains('{'));
        let end = if is_short { ";" } else { "\n}" };
        code.push_str(part.split_once(end).map_or("", |(_, rest)| rest));
    }
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Whether the code has a text that is no part of a longer identifier.
pub(crate) fn has(code: &str, text: &str) -> bool {
    let continues = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (first, last) = (text.chars().next(), text.chars().next_back());
    code.match_indices(text).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + text.len()..].chars().next();
        let is_longer = continues(first) && continues(before) || continues(last) && continues(after);
        !is_longer
    })
}

#[test]
fn only_code_is_seen() {
    let source = "use a; // no b\n//! c\n#[cfg(test)]\nmod tests {\n    use d;\n}";
    assert_eq!(code(source), "use a; \n");
    let source = "use a;\n#[cfg(test)]\nmod b;\nuse c;\n#[cfg(test)]\nfn d() {\n    e();\n}\nuse f;";
    assert_eq!(code(source), "use a;\nuse c;\nuse f;");
    assert!(has("use std::fs::File;", "File") && has("x = fs::read(p)", "fs::") && has("a.elapsed()", ".elapsed()"));
    assert!(!has("struct DiskFile;", "File") && !has("Walker::new", "Wal") && !has("my_fs::read", "fs::"));
}
