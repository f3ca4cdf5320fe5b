//! Jobs of the queue and of the history as JSON, copied as stored.

use fresco_engine::store::{HistoryRecord, QueueRecord};
use fresco_graph::{Value, json};

/// `[number, prompt_id, prompt, extra_data, outputs_to_execute]`, copied as stored.
pub(crate) fn write_item(
    out: &mut String,
    number: &Value,
    prompt_id: &str,
    [prompt, extra_data, outputs]: [&str; 3],
) {
    out.push('[');
    json::write(out, number, json::WIRE);
    out.push(',');
    json::write_string(out, prompt_id, false);
    for part in [prompt, extra_data, outputs] {
        out.push(',');
        out.push_str(part);
    }
    out.push(']');
}

/// A list of jobs, with those of other fronts behind our own.
pub(crate) fn write_items(out: &mut String, records: &[QueueRecord], others: &[Value]) {
    out.push('[');
    for (i, r) in records.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_item(
            out,
            &r.number,
            &r.prompt_id,
            [&r.prompt, &r.extra_data, &r.outputs],
        );
    }
    for other in others {
        if !out.ends_with('[') {
            out.push(',');
        }
        json::write(out, other, json::WIRE);
    }
    out.push(']');
}

/// Entries of the history by their prompts' ids.
pub(crate) fn render(records: &[HistoryRecord]) -> String {
    let mut out = String::from("{");
    for (i, r) in records.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        json::write_string(&mut out, &r.prompt_id, false);
        out.push_str(":{\"prompt\":");
        write_item(
            &mut out,
            &r.number,
            &r.prompt_id,
            [&r.prompt, &r.extra_data, &r.outputs_to_execute],
        );
        out.push_str(",\"outputs\":");
        out.push_str(&r.outputs);
        out.push_str(",\"status\":");
        write_status(&mut out, r);
        out.push_str(",\"meta\":");
        out.push_str(&r.meta);
        out.push('}');
    }
    out.push('}');
    out
}

/// The status object of an entry.
pub(crate) fn write_status(out: &mut String, record: &HistoryRecord) {
    out.push_str("{\"status_str\":");
    json::write_string(out, record.end.status_str(), false);
    out.push_str(",\"completed\":");
    out.push_str(if record.end.is_finished() {
        "true"
    } else {
        "false"
    });
    out.push_str(",\"messages\":");
    out.push_str(&record.messages);
    out.push('}');
}

/// Which entries of the history are wanted.
#[derive(Clone, Copy)]
pub(crate) struct HistoryWindow {
    pub(crate) max_items: Option<i64>,
    /// Of the first one, oldest first; a negative one with `max_items` means the newest ones.
    pub(crate) offset: i64,
}

impl HistoryWindow {
    /// What one front has to give, so that this window can be cut out of what several have.
    pub(crate) fn of_each(self, several: bool) -> (Option<i64>, i64) {
        if !several || self.offset < 0 {
            return (self.max_items, self.offset);
        }
        let items = self.max_items.map(|n| n.saturating_add(self.offset));
        (items, 0)
    }

    /// Where it begins and ends among so many entries.
    pub(crate) fn range(self, entries: usize) -> std::ops::Range<usize> {
        let whole = |n: i64| usize::try_from(n).unwrap_or(0).min(entries);
        let most = self.max_items.map_or(entries, whole);
        let start = match (self.max_items, self.offset) {
            (Some(_), ..0) => entries - most,
            (_, offset) => whole(offset),
        };
        start..(start + most).min(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_cut_out_of_what_several_fronts_have() {
        let window = |max_items, offset| HistoryWindow { max_items, offset };
        assert_eq!(window(None, -1).range(5), 0..5);
        assert_eq!(window(Some(2), -1).range(5), 3..5);
        assert_eq!(window(Some(9), -1).range(5), 0..5);
        assert_eq!(window(Some(2), 1).range(5), 1..3);
        assert_eq!(window(Some(2), 9).range(5), 5..5);
        assert_eq!(window(Some(2), 1).of_each(true), (Some(3), 0));
        assert_eq!(window(Some(2), 1).of_each(false), (Some(2), 1));
        assert_eq!(window(Some(2), -1).of_each(true), (Some(2), -1));
    }
}
