//! Pausing, holding, and putting waiting jobs into another order; on the store thread, like everything that changes the
//! queue.

use std::collections::BTreeSet;

use fresco_graph::Value;
use rusqlite::params;

use super::bodies::Number;
use super::error::StoreError;
use super::pending::Key;
use super::record::{QueueChange, QueueOutline};
use super::thread::{PAUSED, StoreThread};

impl StoreThread {
    pub(super) fn outline(&self) -> QueueOutline {
        let keys = self.queue.pending.sorted();
        let held = keys.iter().filter(|key| self.queue.pending.is_held(key));
        QueueOutline {
            paused: self.queue.paused,
            held: held.map(|key| key.prompt_id.clone()).collect(),
            reasons: keys
                .iter()
                .filter_map(|key| {
                    Some((
                        key.prompt_id.clone(),
                        self.queue.pending.reason(key)?.clone(),
                    ))
                })
                .collect(),
            waiting: self.waiting_reasons(),
            order: keys.iter().map(|key| key.prompt_id.clone()).collect(),
        }
    }

    pub(super) fn change_queue(
        &mut self,
        change: &QueueChange,
    ) -> Result<QueueOutline, StoreError> {
        let QueueChange {
            paused,
            hold,
            release,
            order,
        } = change;
        if let Some(paused) = *paused {
            self.set(PAUSED, paused.then_some("1"))?;
            self.queue.paused = paused;
        }
        for (ids, held) in [(hold, true), (release, false)] {
            for id in ids {
                self.set_held(id, held)?;
            }
        }
        if !order.is_empty() {
            let wanted: Vec<&str> = order.iter().map(|id| &**id).collect();
            self.reorder(&wanted)?;
        }
        Ok(self.outline())
    }

    fn set_held(&mut self, id: &str, held: bool) -> Result<(), StoreError> {
        let keys: Vec<Key> = self.queue.pending.named(id).into_iter().cloned().collect();
        for key in keys {
            if self.queue.pending.is_held(&key) == held {
                continue;
            }
            self.begin()?;
            self.database
                .connection
                .prepare_cached("UPDATE jobs SET held = ?2, held_reason = NULL WHERE seq = ?1")
                .and_then(|mut s| s.execute(params![key.seq, held]))
                .map_err(StoreError::sql("hold a job"))?;
            self.queue.pending.set_held(&key, held);
        }
        Ok(())
    }

    /// The numbers stay, the jobs change places among them: what comes later, at the end or before all others, still
    /// goes where it would have gone.
    fn reorder(&mut self, ids: &[&str]) -> Result<(), StoreError> {
        let now: Vec<Key> = self.queue.pending.by_key().into_iter().cloned().collect();
        let mut moved = BTreeSet::new();
        let mut then: Vec<&Key> = Vec::with_capacity(now.len());
        for id in ids {
            let named = self.queue.pending.named(id).into_iter();
            then.extend(named.filter(|key| moved.insert(key.seq)));
        }
        then.extend(now.iter().filter(|key| !moved.contains(&key.seq)));
        let changes: Vec<(Key, Value, i64)> = changed(&now, &then)
            .map(|at| (then[at].clone(), now[at].number.clone(), at as i64))
            .collect();
        for (key, number, place) in changes {
            self.begin()?;
            self.database
                .connection
                .prepare_cached("UPDATE jobs SET number = ?2, place = ?3 WHERE seq = ?1")
                .and_then(|mut s| s.execute(params![key.seq, Number(&number), place]))
                .map_err(StoreError::sql("order the queue"))?;
            self.queue.pending.rename(&key, number, place);
        }
        Ok(())
    }
}

/// The stretch that differs, with all that have the same numbers as its ends: among equal numbers the places decide, so
/// either all of them have one or none.
fn changed(now: &[Key], then: &[&Key]) -> std::ops::Range<usize> {
    let differs = |at: &usize| now[*at].seq != then[*at].seq;
    let Some(mut start) = (0..now.len()).find(differs) else {
        return 0..0;
    };
    let mut end = (0..now.len()).rfind(differs).map_or(start, |at| at + 1);
    let same = |a: usize, b: usize| now[a].order().total_cmp(&now[b].order()).is_eq();
    while start > 0 && same(start - 1, start) {
        start -= 1;
    }
    while end < now.len() && same(end, end - 1) {
        end += 1;
    }
    start..end
}
