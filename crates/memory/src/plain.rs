//! Events as sentences for people: one line in the log for every model that is loaded, kept, moved or ejected, with its
//! size, who asked, and why. Programs read the events themselves.

use std::fmt::Write as _;

use crate::amount::MIB;
use crate::claims::claimant;
use crate::{Event, Origin, Policy, SetBy, Trigger};

/// The sentence for an event; none for what is of no interest to people who did not ask.
pub(crate) fn sentence(event: &Event) -> Option<String> {
    // What leaves because the program ends is no news.
    if event.trigger == Some(Trigger::Shutdown) && event.kind == "model.released" {
        return None;
    }
    let model = name(event);
    let number = |name: &str| number(event, name);
    let (before, after) = (
        event.bytes_before.unwrap_or(0),
        event.bytes_after.unwrap_or(0),
    );
    let gone = megabytes(before.saturating_sub(after));
    let device = event.device.as_deref().unwrap_or("cpu");
    let text = match event.kind {
        "model.loaded" => loaded(event, &model),
        "model.rehydrated" => {
            let read = megabytes(number("read"));
            format!("read {model} again: {read} from its file{}", because(event))
        }
        "plan.computed" if event.decision == Some("keep") && number("bytes") > 0 => {
            format!("kept {model}: {}{}", places(event), because(event))
        }
        "model.released" if event.error.is_some() => {
            format!(
                "could not release {model}: {gone} came free{}",
                because(event)
            )
        }
        "model.released" if event.model.is_some() => {
            format!(
                "dropped what was patched of {model}: {gone} freed{}",
                because(event)
            )
        }
        "model.released" => {
            // Ejected is what its own policy made go, not what somebody took.
            let own = event.set_by.as_ref().map(SetBy::origin);
            let ejected = event.policy == Some(Policy::EjectAfter) && event.origin == own;
            let verb = if ejected { "ejected" } else { "released" };
            format!("{verb} {model}: {gone} freed{}", because(event))
        }
        "model.evicted" if before > after || event.error.is_some() => {
            format!("moved {model} off {device}: {gone}{}", because(event))
        }
        "model.shrunk" if before > after || event.error.is_some() => {
            let left = megabytes(after);
            format!(
                "moved part of {model} off {device}: {gone}, {left} stay there{}",
                because(event)
            )
        }
        "model.leak_suspected" => format!("{model} did not give its memory back{}", because(event)),
        "policy.ended" => {
            let policy = event.policy.map(|policy| policy.to_string());
            let policy = policy.unwrap_or_default();
            format!("{policy} of {model} ended{}", because(event))
        }
        "retention.conflict" => format!("two wishes for {model}{}", because(event)),
        "cleanup.deferred" => format!("{model} leaves later{}", because(event)),
        "cleanup.completed" => cleaned(event),
        "eject.applied" if number("models") > 0 => {
            let moved = megabytes(number("bytes"));
            format!(
                "cleared {device} for {model}: {moved} moved off{}",
                because(event)
            )
        }
        "free.applied" => freed(event),
        "oom.step" => format!(
            "out of memory on {device}, {} wanted: {}; {} were free, {} are",
            megabytes(number("wanted")),
            reason(event),
            megabytes(number("free_before")),
            megabytes(number("free_after")),
        ),
        "accounting.drift" => format!(
            "the devices do not agree with the books: {} expected to come free, {} did",
            megabytes(number("expected")),
            megabytes(number("measured")),
        ),
        _ => return None,
    };
    Some(match &event.error {
        Some(error) => format!("{text}: {error}"),
        None => text,
    })
}

/// `u.safetensors (diffusion)`: the id without the digest that tells editions apart.
fn name(event: &Event) -> String {
    let Some(id) = &event.weights else {
        return String::new();
    };
    let parts = id
        .as_str()
        .rsplit_once('-')
        .and_then(|(name, _)| name.rsplit_once(':'));
    match parts {
        Some((file, component)) => format!("{file} ({component})"),
        None => id.to_string(),
    }
}

fn number(event: &Event, name: &str) -> u64 {
    let found = event.numbers.iter().find(|(known, _)| *known == name);
    found.map_or(0, |(_, value)| *value)
}

fn reason(event: &Event) -> String {
    event
        .reason
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// `12.3 MB`, as ComfyUI counts them: 1024 KiB each. What is there is never shown as nothing.
pub(crate) fn megabytes(bytes: u64) -> String {
    let amount = bytes as f64 / MIB as f64;
    match amount {
        _ if bytes == 0 => "0 MB".to_owned(),
        a if a < 0.1 => format!("{:.2} MB", a.max(0.01)),
        a if a < 100.0 => format!("{a:.1} MB"),
        a => format!("{a:.0} MB"),
    }
}

/// `1.9 GB`, or in MB what is less than one.
fn amount(bytes: u64) -> String {
    if bytes < 1024 * MIB {
        megabytes(bytes)
    } else {
        format!("{:.1} GB", bytes as f64 / (1024 * MIB) as f64)
    }
}

/// `: why`, with who asked where the reason does not name them.
fn because(event: &Event) -> String {
    let mut text = String::new();
    let reason = reason(event);
    if !reason.is_empty() {
        let _ = write!(text, ": {reason}");
    }
    let asker = match &event.origin {
        Some(Origin::Api { request }) if !reason.contains("the API") => (*request).to_owned(),
        Some(Origin::Flag { flag }) if !reason.contains(flag) => (*flag).to_owned(),
        Some(Origin::Node { node, client, .. } | Origin::Pressure { node, client })
            if !node.is_empty() && !names_node(&reason, node) =>
        {
            claimant(node, client)
        }
        _ => return text,
    };
    let verb = match &event.origin {
        Some(Origin::Pressure { .. }) => "for",
        _ => "asked by",
    };
    let _ = write!(text, "; {verb} {asker}");
    text
}

/// Whether a text speaks of a node; `node 12` is not node 1.
fn names_node(text: &str, node: &str) -> bool {
    let named = format!("node {node}");
    let mut ends = text.match_indices(&named).map(|(at, _)| at + named.len());
    ends.any(|end| !text[end..].starts_with(|c: char| c.is_alphanumeric() || c == ':'))
}

/// `8.0 MB on sim:0, 4.3 MB on cpu`, the accelerators first.
fn places(event: &Event) -> String {
    let (host, devices): (Vec<_>, Vec<_>) = event.places.iter().partition(|(d, _)| d == "cpu");
    let all: Vec<String> = devices
        .into_iter()
        .chain(host)
        .map(|(device, bytes)| format!("{} on {device}", megabytes(*bytes)))
        .collect();
    if all.is_empty() {
        "not in memory".to_owned()
    } else {
        all.join(", ")
    }
}

fn loaded(event: &Event, model: &str) -> String {
    let part = event.decision == Some("partial");
    let which = if part { "part of " } else { "" };
    let mut text = format!("loaded {which}{model}: {}", places(event));
    match number(event, "read") {
        0 => {}
        read => {
            let _ = write!(text, ", {} read from its file", megabytes(read));
        }
    }
    if part {
        text.push_str(&because(event));
    }
    // Who uses it, where that was not said as who asked for it.
    if let Some(node) = &event.node
        && !(part && matches!(event.origin, Some(Origin::Pressure { .. })))
    {
        let _ = write!(text, "; for node {node}");
    }
    text
}

fn cleaned(event: &Event) -> String {
    let number = |name: &str| number(event, name);
    let mut text = format!("cleanup: kept {}", number("kept"));
    if number("kept") > 0 {
        let _ = write!(text, " ({})", amount(number("kept_bytes")));
    }
    let _ = write!(text, ", released {}", number("released"));
    for (name, what) in [
        ("evicted", "moved off devices"),
        ("deferred", "to leave later"),
        ("failed", "failed to leave"),
    ] {
        match number(name) {
            0 => {}
            count => {
                let _ = write!(text, ", {what} {count}");
            }
        }
    }
    if number("others") > 0 {
        let bytes = amount(number("others_bytes"));
        let _ = write!(text, "; {} more in memory ({bytes})", number("others"));
    }
    text
}

fn freed(event: &Event) -> String {
    let number = |name: &str| number(event, name);
    let mut text = format!(
        "freed on request (POST /free): released {}, moved off devices {}, kept {}",
        number("released"),
        number("evicted"),
        number("kept"),
    );
    match number("deferred") {
        0 => {}
        count => {
            let _ = write!(text, ", to leave later {count}");
        }
    }
    let bytes = number("device_bytes") + number("host_bytes");
    let _ = write!(text, "; {}", amount(bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_never_nothing() {
        for (bytes, want) in [
            (0, "0 MB"),
            (1, "0.01 MB"),
            (MIB / 2, "0.5 MB"),
            (12 * MIB + MIB / 3, "12.3 MB"),
            (1640 * MIB, "1640 MB"),
        ] {
            assert_eq!(megabytes(bytes), want);
        }
        assert_eq!(amount(1024 * MIB * 19 / 10), "1.9 GB");
        assert_eq!(amount(5 * MIB), "5.0 MB");
    }
}
