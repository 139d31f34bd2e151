//! The keyboard.

use std::io::{IsTerminal, Read};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C, which is no signal on a raw terminal.
    Interrupt,
    Letter(char),
}

/// Control sequences of terminals, the longer ones of one beginning first.
const SEQUENCES: [(&str, Key); 14] = [
    ("\x1b[A", Key::Up),
    ("\x1b[B", Key::Down),
    ("\x1bOA", Key::Up),
    ("\x1bOB", Key::Down),
    ("\x1b[5~", Key::PageUp),
    ("\x1b[6~", Key::PageDown),
    ("\x1b[H", Key::Home),
    ("\x1b[F", Key::End),
    ("\x1b[1~", Key::Home),
    ("\x1b[4~", Key::End),
    ("\r", Key::Enter),
    ("\x7f", Key::Backspace),
    ("\x08", Key::Backspace),
    ("\x03", Key::Interrupt),
];

/// Reads the keyboard on a thread of its own, which ends with the process. Without a keyboard no key
/// ever comes.
pub(super) fn listen() -> UnboundedReceiver<Key> {
    let (sender, keys) = unbounded_channel();
    if std::io::stdin().is_terminal() {
        std::thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(length @ 1..) = std::io::stdin().read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]);
                if parse(&text).into_iter().any(|key| sender.send(key).is_err()) {
                    return;
                }
            }
        });
    }
    keys
}

/// The keys of what a terminal sent at once: it sends the sequence of one key together.
fn parse(mut text: &str) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some(first) = text.chars().next() {
        let known = SEQUENCES.iter().find(|(sequence, _)| text.starts_with(sequence));
        let (length, key) = match known {
            Some((sequence, key)) => (sequence.len(), Some(*key)),
            None if first == '\x1b' && text.len() == 1 => (1, Some(Key::Escape)),
            // A sequence of a key without a meaning here.
            None if first == '\x1b' => (text.len(), None),
            None if first.is_control() => (first.len_utf8(), None),
            None => (first.len_utf8(), Some(Key::Letter(first))),
        };
        keys.extend(key);
        text = &text[length..];
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: arrows, pages and letters are told apart, also when several arrive at once; keys without a
    /// meaning do not become letters.
    #[test]
    fn sequences_become_keys() {
        assert_eq!(parse("\x1b[A\x1b[6~q"), [Key::Up, Key::PageDown, Key::Letter('q')]);
        assert_eq!(parse("/ä\r"), [Key::Letter('/'), Key::Letter('ä'), Key::Enter]);
        assert_eq!(parse("\x1b"), [Key::Escape]);
        assert_eq!(parse("\x1b[15~"), []);
        assert_eq!(parse("\x03\x7f\x01"), [Key::Interrupt, Key::Backspace]);
    }
}
