//! What the values on links and in caches take, whatever their type, against the budget of a prompt.
//!
//! A piece of memory counts once, as long as any result holds it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use fresco_graph::{Map, NodeError, NodeOutput, Pieces, Slots, Value, lock};

/// Pieces of memory by address.
#[derive(Debug, Default)]
struct Books {
    /// Bytes, and how many results hold them.
    pieces: HashMap<usize, (u64, usize)>,
    total: u64,
}

/// The books of one executor. Clones are the same books.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<Books>>);

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.0)
    }

    /// Bytes of all results that are held.
    #[cfg(test)]
    fn total(&self) -> u64 {
        self.books().total
    }

    /// Bytes of all results together with these pieces.
    fn total_with(&self, pieces: &Pieces) -> u64 {
        let books = self.books();
        let new = |(address, _): &(usize, u64)| !books.pieces.contains_key(address);
        let added: u64 = pieces.iter().filter(new).map(|(_, bytes)| bytes).sum();
        books.total.saturating_add(added)
    }

    /// Counts pieces until the answer is dropped. Whoever holds it holds the values too, so that no address is given to
    /// something else in the meantime.
    pub(crate) fn hold(&self, pieces: &Pieces) -> HeldBytes {
        let mut books = self.books();
        for (address, bytes) in pieces.iter() {
            let piece = books.pieces.entry(address).or_insert((bytes, 0));
            piece.1 += 1;
            if piece.1 == 1 {
                books.total = books.total.saturating_add(bytes);
            }
        }
        HeldBytes {
            ledger: self.clone(),
            addresses: pieces.iter().map(|(address, _)| address).collect(),
        }
    }
}

/// What one result counts for.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes {
    ledger: Ledger,
    addresses: Vec<usize>,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let mut books = self.ledger.books();
        for address in &self.addresses {
            if let Some(piece) = books.pieces.get_mut(address) {
                piece.1 -= 1;
                if piece.1 == 0 {
                    let bytes = piece.0;
                    books.pieces.remove(address);
                    books.total = books.total.saturating_sub(bytes);
                }
            }
        }
    }
}

/// Counts the outputs of a node while its calls are made.
pub(crate) struct Counter {
    ledger: Ledger,
    budget: u64,
    pieces: Pieces,
}

impl Counter {
    pub(crate) fn new(ledger: &Ledger, budget: u64) -> Self {
        Self {
            ledger: ledger.clone(),
            budget,
            pieces: Pieces::default(),
        }
    }

    pub(crate) fn add_output(&mut self, output: &NodeOutput) {
        if let Slots::Values(values) = &output.slots {
            for value in values {
                self.pieces.add_value(value);
            }
        }
        self.add_ui(output.ui.as_ref());
    }

    pub(crate) fn add_result(&mut self, outputs: &[Vec<Value>], ui: Option<&Map>) {
        for value in outputs.iter().flatten() {
            self.pieces.add_value(value);
        }
        self.add_ui(ui);
    }

    fn add_ui(&mut self, ui: Option<&Map>) {
        for value in ui.into_iter().flat_map(Map::values) {
            self.pieces.add_value(value);
        }
    }

    /// Refuses more than a prompt may hold. `forget` drops results of earlier prompts, which have to make room first.
    pub(crate) fn check(&self, forget: impl FnOnce()) -> Result<(), NodeError> {
        if self.ledger.total_with(&self.pieces) <= self.budget {
            return Ok(());
        }
        forget();
        let total = self.ledger.total_with(&self.pieces);
        if total <= self.budget {
            return Ok(());
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Err(NodeError::failed(
            "MemoryError",
            format!(
                "with the results of this node, the values of this prompt would take {} MiB; one prompt may hold {} MiB \
                 (--max-prompt-memory). Make the texts, lists or pictures smaller, or split the workflow",
                mib(total),
                mib(self.budget)
            ),
        ))
    }

    pub(crate) fn hold(&self) -> HeldBytes {
        self.ledger.hold(&self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(ledger: &Ledger, values: &[&Value]) -> Counter {
        let mut counter = Counter::new(ledger, 1000);
        let list = values.iter().map(|v| (*v).clone()).collect();
        counter.add_output(&NodeOutput::slots(list));
        counter
    }

    #[test]
    fn what_is_shared_counts_once_and_what_is_dropped_no_more() {
        let ledger = Ledger::default();
        let [a, b] = ["a", "b"].map(|s| Value::from(s.repeat(400)));
        let first = count(&ledger, &[&a]).hold();
        let second = count(&ledger, &[&a, &b]).hold();
        assert_eq!(ledger.total(), 800);
        let c = Value::from("c".repeat(400));
        let third = count(&ledger, &[&a, &c]);
        let error = third.check(|| ()).unwrap_err();
        assert_eq!(error.kind(), "MemoryError");
        assert!(error.message().contains("--max-prompt-memory"), "{error:?}");
        // What is forgotten makes room.
        assert!(third.check(|| drop(second)).is_ok());
        assert_eq!(ledger.total(), 400);
        drop(first);
        assert_eq!(ledger.total(), 0);
    }

    #[test]
    fn lists_in_lists_are_walked_once() {
        let ledger = Ledger::default();
        let mut list = Value::from("x".repeat(100));
        for _ in 0..200 {
            list = Value::from(vec![list.clone(), list]);
        }
        let held = count(&ledger, &[&list]).hold();
        assert!(ledger.total() > 100 && ledger.total() < 1 << 16);
        drop(held);
    }
}
