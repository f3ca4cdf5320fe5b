//! What memory rooms do and decide, in words for people: reasons, and one line in the log for every model that is loaded, kept, moved or
//! ejected, with its size, who asked, and why. Programs read the events themselves.

use std::fmt::Write as _;

use fresco_memory::amount::{MIB, readable};
use fresco_memory::plan::EvictionRank;
use fresco_memory::{
    ApiRequest, Event, MemoryFlag, NodePlace, OomStep, Origin, Policy, PolicySource, Reason, SetBy,
    Trigger, WeightsId, Wish,
};

/// Why something was decided.
pub(crate) fn reason(why: &Reason) -> String {
    let text = match why {
        Reason::Room {
            rank,
            device,
            missing,
        } => {
            let missing = readable(*missing);
            return format!("{}; {device} needs {missing} more", rank_words(*rank));
        }
        Reason::MainMemory { rank } => {
            return format!("{}; main memory runs short", rank_words(*rank));
        }
        Reason::Pinned => "pinned",
        Reason::EjectedByLoader => "the loader of another model asked for the device",
        Reason::EjectedBy(by) => {
            return format!("{} asked for the device (eject_models)", node_place(by));
        }
        Reason::HeldByOther(None) => "another prompt still uses it",
        Reason::HeldByOther(Some(claimed)) => {
            return format!("another prompt still uses it; {}", wish(claimed));
        }
        Reason::Held => "a prompt uses it",
        Reason::ReleaseWasDeferred => "asked to go while it was in use",
        Reason::UnloadWasDeferred => "asked to unload models while it was in use",
        Reason::Policy(claimed) => return wish(claimed),
        Reason::SmartMemoryOff => "smart memory is off",
        Reason::RetentionRespected(claimed) => {
            return format!("retention is respected: {}", wish(claimed));
        }
        Reason::FreeMemoryRequest => "asked to free memory",
        Reason::UnloadRequest => "asked to unload models",
        Reason::ReleaseRequest => "asked to go",
        Reason::FreeDeferred => "a prompt runs; it is done after its end",
        Reason::PolicySetByApi => "set by the API; no prompt uses it",
        Reason::UnloadInNode => "a node asked for everything to be unloaded",
        Reason::NodeOutOfMemory => "a node ran out of memory and failed",
        Reason::DeviceFull => "the device is full and the node failed",
        Reason::OutOfMemoryStep(step) => oom_step(*step),
        Reason::StreamsMore => "computing needs the room: more of it is streamed",
        Reason::Idle => "nothing was used for long",
        Reason::ProgramEnds => "the program ends",
        Reason::PromptOver(claimed) => return format!("its prompt is over: {}", wish(claimed)),
        Reason::TimeToLiveOver(claimed) => {
            return format!("its time to live is over: {}", wish(claimed));
        }
        Reason::Retry(None) => "releasing it failed before",
        Reason::Retry(Some(first)) => {
            return format!("releasing it failed before: {}", reason(first));
        }
        Reason::LoadFailed(None) => "its load failed",
        Reason::LoadFailed(Some(error)) => return format!("its load failed: {error}"),
        Reason::DeviceFailed { device, failure } => {
            return format!("{device} has failed: {failure}");
        }
        Reason::LastUserGone => "its last user is gone",
        Reason::ReadAgain => "it was released; its files were read again",
        Reason::LeakSuspected => "released, but its bytes did not come back",
        Reason::AccountingDrift => "the devices do not agree with the books",
        Reason::Counts(claimed) => {
            return format!("{} counts: {}", claimed.policy, wish(claimed));
        }
        Reason::UsedAgain(claimed) => return format!("used again: {}", wish(claimed)),
        Reason::Conflict {
            loser,
            winner,
            weights,
        } => {
            let way_out = how_to_undo(winner, weights);
            let (loser, winner) = (wish_in_full(loser), wish_in_full(winner));
            return format!("{loser} loses against {winner}; to undo it, {way_out}");
        }
        Reason::ClaimMoved {
            claimant,
            file,
            counts,
        } => {
            let (claimant, counts) = (node_place(claimant), wish(counts));
            return format!("{claimant} now uses {file}; what counts from now on is {counts}");
        }
        Reason::PlacementInput { by, input, amount } => {
            return format!("{} asked for it ({input}{amount})", node_place(by));
        }
        Reason::DonorsFull(names) => {
            let names = names.join(", ");
            return format!(
                "no room for all that was meant for {names}: the rest is in main memory"
            );
        }
        Reason::NoVram { device } => {
            let flag = memory_flag(MemoryFlag::NoVram);
            return format!("{flag} keeps weights off {device}");
        }
        Reason::DeviceShort {
            device,
            limit: None,
        } => return format!("{device} has no room for more"),
        Reason::DeviceShort {
            device,
            limit: Some((limit, buffer)),
        } => {
            let (limit, buffer) = (megabytes(*limit), megabytes(*buffer));
            return format!(
                "{device} has no room for more: {limit} beside what computing needs, {buffer} of them to bring layers over"
            );
        }
        Reason::Several(reasons) => {
            return reasons.iter().map(reason).collect::<Vec<_>>().join("; ");
        }
    };
    text.to_owned()
}

fn rank_words(rank: EvictionRank) -> &'static str {
    match rank {
        EvictionRank::Unreferenced => "nothing refers to it any more",
        EvictionRank::Ejected => "its prompt is over and asked for it to go",
        EvictionRank::Idle => "not in use",
        EvictionRank::Held => "in use by a prompt, but not now",
        EvictionRank::Kept => "kept, but the room is needed",
        EvictionRank::KeptAndHeld => "kept and in use by a prompt, but the room is needed now",
        EvictionRank::Pinned => "pinned, but ejecting every other model is not enough",
    }
}

fn oom_step(step: OomStep) -> &'static str {
    match step {
        OomStep::EmptyCaches => "caches are emptied",
        OomStep::EvictUnkept => "what is not kept leaves the device",
        OomStep::EvictKept => "what is kept leaves the device",
        OomStep::EvictPinned => "what is pinned leaves the device",
        OomStep::ReleaseHostCopies => "copies in main memory are released",
        OomStep::GiveUp => "given up: everything of this prompt leaves the device",
    }
}

/// `keep set by node 4 of client 8f3a`.
fn wish(wish: &Wish) -> String {
    let (policy, by) = (wish.policy, &wish.set_by);
    match (by.source, &*by.node) {
        (PolicySource::Default, _) if policy == Policy::Auto => {
            "auto: stays until its place is needed".to_owned()
        }
        (PolicySource::Api, _) => format!("{policy} set by the API"),
        (_, "") => format!("{policy} set without a node"),
        _ => format!("{policy} set by {}", claimant(&by.node, &by.client)),
    }
}

/// Whether it belongs to a place in a workflow: a node of a prompt, not a request.
fn has_place(by: &SetBy) -> bool {
    by.source != PolicySource::Api && !by.node.is_empty()
}

/// As [`wish`], and the client is said even where it has no name: two people may wonder which of them.
fn wish_in_full(claimed: &Wish) -> String {
    let by = &claimed.set_by;
    if has_place(by) && by.client.is_empty() {
        let (policy, node) = (claimed.policy, &by.node);
        return format!("{policy} set by node {node} of a client without an id");
    }
    wish(claimed)
}

/// What ends this claim on these weights.
fn how_to_undo(claimed: &Wish, id: &WeightsId) -> String {
    let remove = api_request(ApiRequest::Remove);
    let drop = format!(
        "drop the model with all wishes for it: on the page under Memory, or by {remove}/{id}"
    );
    let by = &claimed.set_by;
    if has_place(by) {
        let claimant = claimant(&by.node, &by.client);
        format!("choose another retention in {claimant} and run it again, or {drop}")
    } else {
        let set = api_request(ApiRequest::SetPolicy);
        format!("choose another policy on the page under Memory or by {set}/{id}, or {drop}")
    }
}

fn node_place(place: &NodePlace) -> String {
    claimant(&place.node, &place.client)
}

/// `node 4 of client 8f3a`; without the client where the request named none.
fn claimant(node: &str, client: &str) -> String {
    if client.is_empty() {
        format!("node {node}")
    } else {
        format!("node {node} of client {client}")
    }
}

fn api_request(request: ApiRequest) -> &'static str {
    match request {
        ApiRequest::Free => "POST /free",
        ApiRequest::SetPolicy => "PATCH /memory/models",
        ApiRequest::Remove => "DELETE /memory/models",
    }
}

fn memory_flag(flag: MemoryFlag) -> &'static str {
    match flag {
        MemoryFlag::NoVram => "--novram",
        MemoryFlag::UnloadAfter => "--unload-after",
        MemoryFlag::DisableSmartMemory => "--disable-smart-memory",
    }
}

/// The input, the request or the flag that made something happen.
pub(crate) fn origin_name(origin: &Origin) -> Option<&'static str> {
    match origin {
        Origin::Node { input, .. } => Some(input),
        Origin::Api { request } => Some(api_request(*request)),
        Origin::Flag { flag } => Some(memory_flag(*flag)),
        Origin::Default | Origin::Pressure { .. } | Origin::Program => None,
    }
}

/// The sentence for an event; none for what is of no interest to people who did not ask.
fn sentence(event: &Event) -> Option<String> {
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
            // A model is ejected by its own policy; what a request takes away is released.
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
            event_reason(event),
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

fn event_reason(event: &Event) -> String {
    event.reason.as_ref().map(reason).unwrap_or_default()
}

/// `12.3 MB`, as ComfyUI counts them: 1024 KiB each. What is there is never shown as nothing.
fn megabytes(bytes: u64) -> String {
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
    let reason = event_reason(event);
    if !reason.is_empty() {
        let _ = write!(text, ": {reason}");
    }
    let asker = match &event.origin {
        Some(Origin::Api { request }) if !reason.contains("the API") => {
            api_request(*request).to_owned()
        }
        Some(Origin::Flag { flag }) if !reason.contains(memory_flag(*flag)) => {
            memory_flag(*flag).to_owned()
        }
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

/// Writes an event to the log of the program: a sentence for events that people follow, and all fields of every event at the debug level.
pub fn log_memory_event(event: &Event) {
    match sentence(event) {
        Some(text) if event.error.is_some() => tracing::warn!("{text}"),
        Some(text) => tracing::info!("{text}"),
        None => {}
    }
    tracing::debug!(seq = event.seq, "{}", describe(event));
}

/// One line: kind, identity, policy and its source, bytes, reason.
fn describe(event: &Event) -> String {
    let mut text = event.kind.to_owned();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, " {name}={value}");
        }
    };
    add("weights", event.weights.as_ref().map(ToString::to_string));
    add("model", event.model.map(|id| id.to_string()));
    add("device", event.device.clone());
    add("decision", event.decision.map(str::to_owned));
    add("policy", event.policy.map(|policy| policy.to_string()));
    let set_by = event.set_by.as_ref();
    add("from", set_by.map(|s| s.source.name().to_owned()));
    add("set_by_node", non_empty(set_by.map(|s| &s.node)));
    add("set_by_client", non_empty(set_by.map(|s| &s.client)));
    if let Some(origin) = &event.origin {
        let (node, client) = origin.place();
        add("origin", Some(origin.kind().to_owned()));
        add(
            "origin_name",
            origin_name(origin).map(|name| format!("{name:?}")),
        );
        add("origin_node", non_empty(node));
        add("origin_client", non_empty(client));
    }
    add("before", event.bytes_before.map(|b| b.to_string()));
    add("after", event.bytes_after.map(|b| b.to_string()));
    for (device, bytes) in &event.places {
        add(device, Some(bytes.to_string()));
    }
    for (name, value) in &event.numbers {
        add(name, Some(value.to_string()));
    }
    add("trigger", event.trigger.map(|t| t.name().to_owned()));
    add("prompt", event.prompt.as_ref().map(ToString::to_string));
    add("node", event.node.as_ref().map(ToString::to_string));
    add("error", event.error.as_ref().map(|e| format!("{e:?}")));
    if let Some(why) = &event.reason {
        let _ = write!(text, ": {}", reason(why));
    }
    text
}

fn non_empty(text: Option<&std::sync::Arc<str>>) -> Option<String> {
    text.filter(|text| !text.is_empty())
        .map(ToString::to_string)
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

    fn set_by(node: &str, client: &str, policy: Policy) -> Wish {
        Wish {
            policy,
            set_by: SetBy {
                source: PolicySource::NodeInput,
                node: node.into(),
                client: client.into(),
            },
        }
    }

    #[test]
    fn a_conflict_names_both_sides_and_a_way_out() {
        let weights = WeightsId::new("vae:a.pt-1");
        let conflict = |winner: Wish| {
            reason(&Reason::Conflict {
                loser: set_by("7", "bob", Policy::EjectAfter),
                winner,
                weights: weights.clone(),
            })
        };
        let text = conflict(set_by("1", "alice", Policy::Keep));
        for words in [
            "eject_after set by node 7 of client bob",
            "keep set by node 1 of client alice",
            "DELETE /memory/models/vae:a.pt-1",
            "page",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        let nameless = conflict(set_by("1", "", Policy::Keep));
        assert!(nameless.contains("node 1 of a client without an id"));
    }

    #[test]
    fn reasons_are_never_empty() {
        for why in [
            Reason::Pinned,
            Reason::Policy(Wish::default()),
            Reason::DeviceShort {
                device: "cuda:0".into(),
                limit: Some((MIB, MIB)),
            },
            Reason::Several(vec![
                Reason::Held,
                Reason::NoVram {
                    device: "sim:0".into(),
                },
            ]),
        ] {
            assert!(!reason(&why).is_empty(), "{why:?}");
        }
        assert_eq!(
            reason(&Reason::Several(vec![Reason::Pinned, Reason::Idle])),
            "pinned; nothing was used for long"
        );
    }
}
