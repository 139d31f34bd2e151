//! Pinned configurations: a template with placeholders, in which an experiment replaces a setting.
//!
//! A template has one setting a line, `key value`, `key=value`, `key = value` or `key: value`, and
//! `{{name}}` where a value differs from node to node. Comments begin with `#`.

use super::error::Error;

/// Fills the placeholders, and replaces or adds the settings.
///
/// # Errors
/// [`Error::Config`] if the template has a placeholder without a value, or a value without a
/// placeholder, or a setting has a line break.
pub(super) fn render(
    kind: &'static str,
    template: &str,
    values: &[(&str, &str)],
    settings: &[(String, String)],
    separator: &str,
) -> Result<String, Error> {
    let error = |reason: String| Error::Config { kind, reason };
    let mut text = template.to_owned();
    for (name, value) in values {
        let placeholder = format!("{{{{{name}}}}}");
        if !text.contains(&placeholder) {
            return Err(error(format!("the template has no placeholder {placeholder}")));
        }
        if value.contains(['\n', '\r']) {
            return Err(error(format!("the value of {name} has a line break")));
        }
        text = text.replace(&placeholder, value);
    }
    if let Some(line) = text.lines().find(|line| line.contains("{{")) {
        return Err(error(format!("no value was given for a placeholder in `{line}`")));
    }
    for (key, value) in settings {
        if key.is_empty() || format!("{key}{value}").contains(['\n', '\r']) {
            return Err(error(format!("the setting `{key}` `{value}` must be a name and a value on one line")));
        }
        text = replace(&text, key, &format!("{key}{separator}{value}"));
    }
    Ok(text)
}

/// Replaces the lines that set the key, or adds one.
fn replace(text: &str, key: &str, setting: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut is_set = false;
    for line in text.lines() {
        if key_of(line) != Some(key) {
            lines.push(line);
        } else if !is_set {
            lines.push(setting);
            is_set = true;
        }
    }
    if !is_set {
        lines.push(setting);
    }
    lines.join("\n") + "\n"
}

fn key_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    line.split([' ', '\t', '=', ':']).next()
}

/// The words of a file of flags, one flag a line, without its comments.
pub(super) fn flags(text: &str) -> Vec<String> {
    let settings = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    settings.flat_map(|line| line.splitn(2, ' ').map(|word| word.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = "# port 1\nport {{port}}\nsave \"\"\nsave 60 1\nname={{name}}\n";

    fn pairs(settings: &[(&str, &str)]) -> Vec<(String, String)> {
        settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn placeholders_are_filled_and_settings_replaced() {
        let values = [("port", "7"), ("name", "a")];
        let text = render("t", TEMPLATE, &values, &pairs(&[("save", "1 1"), ("new", "x")]), " ").unwrap();
        assert_eq!(text, "# port 1\nport 7\nsave 1 1\nname=a\nnew x\n");
    }

    #[test]
    fn forgotten_and_unknown_values_are_errors() {
        let forgotten = render("t", TEMPLATE, &[("port", "7")], &[], " ").unwrap_err().to_string();
        assert!(forgotten.contains("`name={{name}}`"), "{forgotten}");
        let unknown = render("t", TEMPLATE, &[("data", "/d")], &[], " ").unwrap_err().to_string();
        assert!(unknown.contains("no placeholder {{data}}"), "{unknown}");
        let injected = render("t", TEMPLATE, &[("port", "7"), ("name", "a")], &pairs(&[("a", "b\nc")]), " ");
        assert!(injected.is_err());
    }

    #[test]
    fn flags_are_words_without_comments() {
        assert_eq!(flags("# why\n--a 1\n\n--b\n"), ["--a", "1", "--b"]);
    }
}
