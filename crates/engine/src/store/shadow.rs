//! What of the database is also known in memory: the waiting and running jobs, and how the last ones ended.
//!
//! It serves one purpose: to write the queue anew when somebody has overwritten the file. There is a limit to it, so that a
//! long queue costs what its keys cost; texts beyond that limit are in the database alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::bodies::JobTexts;
use super::history::EncodedOutcome;
use super::pending::Key;

/// Bytes of texts of jobs, and as many of outcomes.
const BYTES: usize = 16 << 20;
/// Outcomes.
const ENDED: usize = 500;

pub(super) struct Ended {
    pub(super) key: Key,
    pub(super) texts: Arc<JobTexts>,
    pub(super) outcome: Arc<EncodedOutcome>,
}

impl Ended {
    fn bytes(&self) -> usize {
        // Texts, and the values they were made from.
        self.texts.bytes() + 3 * self.outcome.bytes()
    }
}

#[derive(Default)]
pub(super) struct Shadow {
    pub(super) jobs: BTreeMap<i64, Arc<JobTexts>>,
    pub(super) job_bytes: usize,
    pub(super) ended: VecDeque<Ended>,
    pub(super) ended_bytes: usize,
}

impl Shadow {
    /// Remembers a job if there is room.
    pub(super) fn keep_job(&mut self, seq: i64, texts: Arc<JobTexts>) -> bool {
        let bytes = texts.bytes();
        let fits = self.job_bytes + bytes <= BYTES;
        if fits {
            self.job_bytes += bytes;
            self.jobs.insert(seq, texts);
        }
        fits
    }

    pub(super) fn job(&self, seq: i64) -> Option<Arc<JobTexts>> {
        self.jobs.get(&seq).cloned()
    }

    /// A job is gone without an end.
    pub(super) fn forget_job(&mut self, seq: i64) {
        if let Some(texts) = self.jobs.remove(&seq) {
            self.job_bytes -= texts.bytes();
        }
    }

    /// A job is in the history now.
    pub(super) fn ended(&mut self, key: &Key, outcome: Arc<EncodedOutcome>) {
        let Some(texts) = self.jobs.remove(&key.seq) else {
            return;
        };
        self.job_bytes -= texts.bytes();
        self.forget_ended(&key.prompt_id);
        let ended = Ended {
            key: key.clone(),
            texts,
            outcome,
        };
        self.ended_bytes += ended.bytes();
        self.ended.push_back(ended);
        while (self.ended_bytes > BYTES || self.ended.len() > ENDED)
            && let Some(oldest) = self.ended.pop_front()
        {
            self.ended_bytes -= oldest.bytes();
        }
    }

    /// An entry was removed from the history.
    pub(super) fn forget_ended(&mut self, prompt_id: &str) {
        self.ended
            .retain(|ended| &*ended.key.prompt_id != prompt_id);
        self.ended_bytes = self.ended.iter().map(Ended::bytes).sum();
    }

    pub(super) fn forget_history(&mut self) {
        self.ended.clear();
        self.ended_bytes = 0;
    }

    /// The last ends, oldest first.
    pub(super) fn history(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter()
    }
}
