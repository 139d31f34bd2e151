//! The shown part of the pictures: which lock is chosen, which are filtered out.

use std::collections::HashMap;
use std::time::Duration;

use palisade_client::BootInstant;
use palisade_client::wire::LockView;

use super::keys::Key;
use super::picture::Picture;

/// The state of the display.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) colour: bool,
    pub(super) picture: Option<Picture>,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) is_typing: bool,
    /// The key of the chosen lock.
    pub(super) chosen: Option<String>,
    /// The first lock that is shown, and how many are.
    pub(super) first: usize,
    pub(super) shown: usize,
    /// The longest time to live that each session has had in a picture, in milliseconds: about its whole
    /// TTL, which no node tells to others.
    longest: HashMap<u64, u64>,
}

impl View {
    /// A display without a picture.
    pub(super) fn with_colour(colour: bool) -> View {
        View { colour, ..View::default() }
    }

    /// Takes a newer picture.
    pub(super) fn update(&mut self, picture: Picture) {
        if let Ok(locks) = &picture.locks {
            let mut longest = HashMap::new();
            for holder in locks.iter().flat_map(|lock| &lock.holders) {
                let before = self.longest.get(&holder.session).copied().unwrap_or(0);
                longest.insert(holder.session, before.max(holder.expires_in_ms));
            }
            self.longest = longest;
        }
        self.picture = Some(picture);
    }

    /// Whether a node has answered.
    pub(super) fn has_answer(&self) -> bool {
        self.picture.as_ref().is_some_and(|picture| picture.current().is_some())
    }

    /// The locks that pass the filter.
    pub(super) fn locks(&self) -> Vec<&LockView> {
        let locks = self.picture.as_ref().and_then(|picture| picture.locks.as_ref().ok());
        let locks = locks.into_iter().flatten();
        let passes = |lock: &&LockView| {
            let owners = lock.holders.iter().map(|holder| &holder.owner);
            [&lock.key].into_iter().chain(owners).any(|text| text.contains(&self.filter))
        };
        locks.filter(passes).collect()
    }

    /// What is left of a holder's lease, and which part of its TTL that is.
    pub(super) fn left(&self, session: u64, expires_in_ms: u64) -> (Duration, f64) {
        let age = self
            .picture
            .as_ref()
            .map_or(Duration::ZERO, |picture| BootInstant::now().saturating_duration_since(picture.at));
        let left = Duration::from_millis(expires_in_ms).saturating_sub(age);
        let longest = Duration::from_millis(self.longest.get(&session).copied().unwrap_or(0));
        let part = if longest.is_zero() { 0.0 } else { left.as_secs_f64() / longest.as_secs_f64() };
        (left, part.min(1.0))
    }

    /// The position of the chosen lock among the filtered ones; of the first, if it is gone.
    pub(super) fn position(&self) -> usize {
        let locks = self.locks();
        let chosen = self.chosen.as_deref();
        locks.iter().position(|lock| chosen == Some(lock.key.as_str())).unwrap_or(0)
    }

    fn choose(&mut self, position: usize) {
        let locks = self.locks();
        let last = locks.len().saturating_sub(1);
        self.chosen = locks.get(position.min(last)).map(|lock| lock.key.clone());
    }

    /// Reacts to a key. Returns whether the display ends.
    pub(super) fn press(&mut self, key: Key) -> bool {
        let (at, page) = (self.position(), self.shown.max(1));
        match key {
            Key::Interrupt => return true,
            Key::Up => self.choose(at.saturating_sub(1)),
            Key::Down => self.choose(at + 1),
            Key::PageUp => self.choose(at.saturating_sub(page)),
            Key::PageDown => self.choose(at + page),
            Key::Home => self.choose(0),
            Key::End => self.choose(usize::MAX),
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Backspace if self.is_typing => drop(self.filter.pop()),
            Key::Letter(letter) if self.is_typing => self.filter.push(letter),
            Key::Letter('/') => self.is_typing = true,
            Key::Letter('q') => return true,
            Key::Letter('k') => self.choose(at.saturating_sub(1)),
            Key::Letter('j') => self.choose(at + 1),
            Key::Backspace | Key::Letter(_) => {}
        }
        false
    }

    /// Moves the first shown lock so that the chosen one is among `rows` of them.
    pub(super) fn scroll(&mut self, rows: usize) {
        let (at, all) = (self.position(), self.locks().len());
        self.shown = rows;
        self.first = self.first.min(all.saturating_sub(rows)).clamp((at + 1).saturating_sub(rows), at);
    }
}
