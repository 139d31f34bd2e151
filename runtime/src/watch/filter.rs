//! The keys that a watch follows.

/// What a watch follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// One key.
    Key(Box<str>),
    /// All keys that begin so.
    Prefix(Box<str>),
}

impl Filter {
    /// Whether the watch follows this key.
    pub fn matches(&self, key: &str) -> bool {
        match self {
            Filter::Key(only) => **only == *key,
            Filter::Prefix(prefix) => key.starts_with(&**prefix),
        }
    }
}
