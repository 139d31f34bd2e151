//! Finds the grants that last longest: which of the first of a key's grants certainly last past some
//! moment?

use crate::Time;

/// The moments up to which grants certainly last, in the order of their tokens: a tree of maxima.
#[derive(Debug)]
pub(super) struct Lasting {
    /// The root is at 1, the children of a node n at 2n and 2n + 1, the leaves from `width` on.
    tree: Vec<Time>,
    width: usize,
}

impl Lasting {
    pub(super) fn new(lasts: impl ExactSizeIterator<Item = Time>) -> Lasting {
        let width = (lasts.len() + 1).next_power_of_two();
        let mut tree = vec![Time(0); 2 * width];
        for (index, last) in lasts.enumerate() {
            tree[width + index] = last;
        }
        for node in (1..width).rev() {
            tree[node] = tree[2 * node].max(tree[2 * node + 1]);
        }
        Lasting { tree, width }
    }

    /// Of the first `end` grants, those that last past `moment`, the last of them first. Each costs
    /// O(log n).
    pub(super) fn past(&self, end: usize, moment: Time) -> impl Iterator<Item = usize> + '_ {
        let mut end = end;
        std::iter::from_fn(move || {
            end = self.last_past(end, moment)?;
            Some(end)
        })
    }

    fn last_past(&self, end: usize, moment: Time) -> Option<usize> {
        // Climb from the right end to a subtree that has such a grant, and descend into it.
        let mut node = self.width + end;
        loop {
            while node.is_multiple_of(2) {
                node /= 2;
            }
            if node <= 1 {
                return None;
            }
            node -= 1;
            if self.tree[node] > moment {
                break;
            }
        }
        while node < self.width {
            node = if self.tree[2 * node + 1] > moment { 2 * node + 1 } else { 2 * node };
        }
        Some(node - self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_grants_are_found_from_the_last_to_the_first() {
        for count in 0..20 {
            let lasts: Vec<Time> = (0..count).map(|index| Time(index * 7 % 11)).collect();
            let tree = Lasting::new(lasts.iter().copied());
            for (end, moment) in (0..=lasts.len()).flat_map(|end| (0..12).map(move |moment| (end, Time(moment)))) {
                let expected = (0..end).rev().filter(|&index| lasts[index] > moment);
                assert!(tree.past(end, moment).eq(expected), "{lasts:?}, {end}, {moment}");
            }
        }
    }
}
