//! What waits, fair between clients.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

/// One client's jobs in their own order.
#[derive(Clone, Debug)]
struct Line<K> {
    /// The turn of its first job.
    turn: u64,
    /// And how often each was passed over.
    jobs: BTreeMap<K, u32>,
}

/// Waiting jobs. `K` says where one stands in the queue as it would be with one worker; the jobs of one client are taken in that
/// order, and clients take turns. Jobs that were put in front come before all others.
#[derive(Clone, Debug)]
pub struct FairQueue<K> {
    front: BTreeMap<K, u32>,
    lines: BTreeMap<Arc<str>, Line<K>>,
    /// The turn that jobs were taken of last. A client that comes anew begins here, not with turns it never used.
    turn: u64,
    len: usize,
}

impl<K> Default for FairQueue<K> {
    fn default() -> Self {
        Self {
            front: BTreeMap::new(),
            lines: BTreeMap::new(),
            turn: 0,
            len: 0,
        }
    }
}

/// A place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InLine<K> {
    pub key: K,
    pub passes: u32,
    pub front: bool,
}

impl<K: Ord + Clone> FairQueue<K> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a job. `front`: before all that were not put there.
    pub fn insert(&mut self, client: &Arc<str>, key: K, front: bool) {
        let old = if front {
            self.front.insert(key, 0)
        } else {
            let turn = self.turn;
            let line = self.lines.entry(client.clone()).or_insert_with(|| Line {
                turn,
                jobs: BTreeMap::new(),
            });
            line.jobs.insert(key, 0)
        };
        self.len += usize::from(old.is_none());
    }

    /// Takes a job out that somebody gave up, without it being the client's turn.
    pub fn remove(&mut self, client: &str, key: &K) -> bool {
        let there = self.front.remove(key).is_some() || self.remove_from_line(client, key);
        self.len -= usize::from(there);
        there
    }

    fn remove_from_line(&mut self, client: &str, key: &K) -> bool {
        let Some(line) = self.lines.get_mut(client) else {
            return false;
        };
        let there = line.jobs.remove(key).is_some();
        if line.jobs.is_empty() && line.turn <= self.turn {
            self.lines.remove(client);
        }
        there
    }

    /// Takes a job out to be run: its client used a turn. Those that stood before it were passed over.
    pub fn take(&mut self, client: &str, key: &K, passed: impl IntoIterator<Item = (Arc<str>, K)>) {
        for (of, key) in passed {
            let job = match self.front.get_mut(&key) {
                Some(passes) => Some(passes),
                None => self
                    .lines
                    .get_mut(&of)
                    .and_then(|line| line.jobs.get_mut(&key)),
            };
            if let Some(passes) = job {
                *passes += 1;
            }
        }
        let front = self.front.remove(key).is_some();
        if front {
            self.len -= 1;
            return;
        }
        let Some(line) = self.lines.get_mut(client) else {
            return;
        };
        if line.jobs.remove(key).is_some() {
            self.len -= 1;
            self.turn = self.turn.max(line.turn);
            line.turn += 1;
        }
        let turn = self.turn;
        self.lines
            .retain(|_, line| !line.jobs.is_empty() || line.turn > turn);
    }

    /// The first `most` jobs.
    pub fn window(&self, most: usize) -> Vec<InLine<K>> {
        let mut window: Vec<InLine<K>> = self
            .front
            .iter()
            .take(most)
            .map(|(key, passes)| InLine {
                key: key.clone(),
                passes: *passes,
                front: true,
            })
            .collect();
        let mut lines: Vec<_> = self
            .lines
            .values()
            .map(|line| (line.turn, line.jobs.iter()))
            .collect();
        let mut heads = BinaryHeap::new();
        for (at, (turn, jobs)) in lines.iter_mut().enumerate() {
            if let Some((key, passes)) = jobs.next() {
                heads.push(Reverse((*turn, key, at, *passes)));
            }
        }
        while window.len() < most
            && let Some(Reverse((turn, key, at, passes))) = heads.pop()
        {
            window.push(InLine {
                key: key.clone(),
                passes,
                front: false,
            });
            if let Some((key, passes)) = lines[at].1.next() {
                heads.push(Reverse((turn + 1, key, at, *passes)));
            }
        }
        window
    }

    /// Clients with jobs in line.
    pub fn clients(&self) -> BTreeSet<&Arc<str>> {
        let waits = |(client, line): (_, &Line<K>)| (!line.jobs.is_empty()).then_some(client);
        self.lines.iter().filter_map(waits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(queue: &FairQueue<u32>) -> Vec<u32> {
        queue.window(100).into_iter().map(|job| job.key).collect()
    }

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn one_client_has_the_order_of_the_queue() {
        let mut queue = FairQueue::default();
        for key in [5, 1, 3] {
            queue.insert(&name("a"), key, false);
        }
        queue.insert(&name("a"), 9, true);
        assert_eq!(order(&queue), [9, 1, 3, 5]);
        assert_eq!(queue.window(2).len(), 2);
        assert_eq!(queue.len(), 4);
    }

    #[test]
    fn clients_take_turns_whenever_they_came() {
        let mut queue = FairQueue::default();
        for key in 0..4 {
            queue.insert(&name("a"), key, false);
        }
        queue.take("a", &0, []);
        queue.take("a", &1, []);
        // The newcomer is not before everything that "a" ever had, and not behind it.
        for key in 10..12 {
            queue.insert(&name("b"), key, false);
        }
        assert_eq!(order(&queue), [10, 2, 11, 3]);
        queue.take("b", &10, []);
        queue.take("b", &11, []);
        assert_eq!(queue.len(), 2);
        // Whoever used its turns does not get them again by coming back.
        queue.insert(&name("b"), 12, false);
        assert_eq!(order(&queue), [2, 3, 12]);
    }

    #[test]
    fn what_is_removed_costs_no_turn() {
        let mut queue = FairQueue::default();
        queue.insert(&name("a"), 1, false);
        queue.insert(&name("b"), 2, false);
        assert!(queue.remove("a", &1));
        assert!(!queue.remove("a", &1));
        assert!(!queue.remove("nobody", &2));
        queue.insert(&name("a"), 3, false);
        assert_eq!(order(&queue), [2, 3]);
    }

    #[test]
    fn those_that_are_passed_over_remember_it() {
        let mut queue = FairQueue::default();
        for key in 0..3 {
            queue.insert(&name("a"), key, false);
        }
        queue.insert(&name("b"), 7, true);
        queue.take("a", &2, [(name("a"), 0), (name("a"), 1), (name("b"), 7)]);
        let passes: Vec<_> = queue
            .window(9)
            .into_iter()
            .map(|j| (j.key, j.passes))
            .collect();
        assert_eq!(passes, [(7, 1), (0, 1), (1, 1)]);
    }
}
