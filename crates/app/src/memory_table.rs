//! What `/memory` answers, as tables for people.

use std::fmt::Write as _;

use fresco_graph::Value;
use jiff::Timestamp;
use jiff::tz::TimeZone;

const BAR: usize = 24;
/// Decisions that are shown.
const LAST: usize = 12;
/// Where a long reason is cut.
const REASON: usize = 90;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn bytes(value: &Value, key: &str) -> u64 {
    match value.get(key) {
        Some(Value::Int(i)) => u64::try_from(*i).unwrap_or_default(),
        _ => 0,
    }
}

fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_list).unwrap_or_default()
}

/// `1.5 GiB`, `12 MiB`, `0`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    if bytes == 0 {
        return "0".to_owned();
    }
    let (unit, shift) = UNITS
        .into_iter()
        .find(|(_, shift)| bytes >> shift > 0)
        .unwrap_or(("B", 0));
    let amount = bytes as f64 / (1u64 << shift) as f64;
    if shift == 0 || amount >= 100.0 {
        format!("{amount:.0} {unit}")
    } else {
        format!("{amount:.1} {unit}")
    }
}

fn bar(used: u64, total: u64) -> String {
    let part = used as f64 / total.max(1) as f64;
    let filled = ((part * BAR as f64).round() as usize).min(BAR);
    format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR - filled))
}

/// Columns as wide as their widest entry; the last one as it is.
fn columns(out: &mut String, rows: &[Vec<String>]) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, " {cell:<width$} ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// `GET /memory` at a moment.
pub(crate) fn overview(state: &Value, now_ms: i64) -> String {
    let mut out = String::from("devices\n");
    let workers = has_workers(state);
    let named = |item: &Value, row: Vec<String>| with_worker(workers, item, row);
    let devices = items(state, "devices").iter();
    let rows: Vec<Vec<String>> = devices.map(|d| named(d, device(d))).collect();
    if rows.is_empty() {
        out.push_str("  none are managed\n");
    }
    columns(&mut out, &rows);

    out.push_str("\nmodels\n");
    let models = items(state, "models");
    if models.is_empty() {
        out.push_str("  none in memory\n");
    } else {
        let head = [
            "ID", "SIZE", "STATE", "WHERE", "POLICY", "HELD BY", "LAST USE",
        ];
        let mut head = head.map(str::to_owned).to_vec();
        if workers {
            head.insert(0, "WORKER".to_owned());
        }
        let mut rows = vec![head];
        rows.extend(models.iter().map(|m| named(m, model(m, now_ms))));
        columns(&mut out, &rows);
    }

    out.push_str("\nlast decisions\n");
    let decisions = items(state, "decisions");
    if decisions.is_empty() {
        out.push_str("  none yet\n");
    }
    let last = &decisions[decisions.len().saturating_sub(LAST)..];
    let rows: Vec<Vec<String>> = last.iter().map(|d| named(d, decision(d))).collect();
    columns(&mut out, &rows);
    out
}

/// Whether something is on another machine, or of one of several workers.
fn has_workers(state: &Value) -> bool {
    let lists = ["devices", "models", "decisions"].map(|list| items(state, list));
    let mut all = lists.into_iter().flatten();
    all.any(|item| item.get("worker").is_some_and(|worker| !worker.is_null()))
}

/// A row that begins with whose it is.
fn with_worker(workers: bool, item: &Value, mut row: Vec<String>) -> Vec<String> {
    if workers {
        let worker = text(item, "worker");
        let shown = if worker.is_empty() { "here" } else { worker };
        row.insert(0, shown.to_owned());
    }
    row
}

fn device(device: &Value) -> Vec<String> {
    let (total, free) = (bytes(device, "total"), bytes(device, "free"));
    let used = total.saturating_sub(free);
    let mut notes = Vec::new();
    for (key, name) in [
        ("weights_resident", "weights"),
        ("weights_buffer", "for streaming"),
        ("reserved", "reserved"),
        ("pinned_host", "pinned"),
        ("peak", "peak"),
    ] {
        match bytes(device, key) {
            0 => {}
            amount => notes.push(format!("{name} {}", size(amount))),
        }
    }
    vec![
        text(device, "device").to_owned(),
        bar(used, total),
        format!("{} of {} used", size(used), size(total)),
        notes.join(", "),
    ]
}

fn model(model: &Value, now_ms: i64) -> Vec<String> {
    let mut places: Vec<String> = model
        .get("residency")
        .and_then(Value::as_map)
        .into_iter()
        .flatten()
        .filter_map(|(device, held)| match held {
            Value::Int(held) if *held > 0 => {
                let held = u64::try_from(*held).unwrap_or_default();
                Some(format!("{device} {}", size(held)))
            }
            _ => None,
        })
        .collect();
    match bytes(model, "host_bytes") {
        0 => {}
        held => places.push(format!("cpu {}", size(held))),
    }
    if places.is_empty() {
        places.push("file only".to_owned());
    }
    let mut state = text(model, "state").to_owned();
    if let Some(why) = model.get("demoted_by").and_then(Value::as_str) {
        let _ = write!(state, " ({why})");
    }
    let leases: Vec<String> = items(model, "leases")
        .iter()
        .filter_map(Value::as_str)
        .map(|id| id.chars().take(8).collect())
        .collect();
    let used = match model.get("last_used") {
        Some(Value::Int(at)) => ago(now_ms, i64::try_from(*at).unwrap_or(now_ms)),
        _ => "never".to_owned(),
    };
    vec![
        text(model, "weights_id").to_owned(),
        size(bytes(model, "bytes_total")),
        state,
        places.join(", "),
        policy(model),
        if leases.is_empty() {
            "-".to_owned()
        } else {
            leases.join(", ")
        },
        used,
    ]
}

/// `keep (node 4)`.
fn policy(model: &Value) -> String {
    let effective = text(model, "effective_policy");
    let source = match text(model, "policy_source") {
        "" | "default" => return effective.to_owned(),
        "api" => "api".to_owned(),
        source => {
            let by = items(model, "claims")
                .iter()
                .find(|c| text(c, "policy") == effective && text(c, "source") == source);
            let node = by.and_then(|c| c.get("claimant")?.get("node_id")?.as_str());
            match node.filter(|n| !n.is_empty()) {
                Some(node) => format!("node {node}"),
                None => source.replace('_', " "),
            }
        }
    };
    format!("{effective} ({source})")
}

fn ago(now_ms: i64, at_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(at_ms).max(0) / 1000;
    match seconds {
        0..=99 => format!("{seconds} s ago"),
        100..=5999 => format!("{} min ago", seconds / 60),
        6000..=359_999 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn clock(value: &Value) -> String {
    let at = match value.get("time") {
        Some(Value::Int(at)) => i64::try_from(*at).ok(),
        _ => None,
    };
    at.and_then(|at| Timestamp::from_millisecond(at).ok())
        .map(|at| {
            let zoned = at.to_zoned(TimeZone::system());
            zoned.strftime("%H:%M:%S").to_string()
        })
        .unwrap_or_default()
}

fn decision(event: &Value) -> Vec<String> {
    let change = match (event.get("bytes_before"), event.get("bytes_after")) {
        (Some(Value::Int(_)), Some(Value::Int(_))) => {
            let (before, after) = (bytes(event, "bytes_before"), bytes(event, "bytes_after"));
            format!("{} -> {}", size(before), size(after))
        }
        (Some(Value::Int(_)), _) => size(bytes(event, "bytes_before")),
        (_, Some(Value::Int(_))) => size(bytes(event, "bytes_after")),
        _ => String::new(),
    };
    let mut why = text(event, "reason").to_owned();
    if let Some(error) = event.get("error").and_then(Value::as_str) {
        let _ = write!(why, " ERROR: {error}");
    }
    // A reason is one line of a table.
    let mut why: String = why
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if why.chars().count() > REASON {
        why = why.chars().take(REASON - 3).collect::<String>() + "...";
    }
    vec![
        clock(event),
        text(event, "kind").to_owned(),
        text(event, "decision").to_owned(),
        text(event, "weights_id").to_owned(),
        text(event, "device").to_owned(),
        change,
        why,
    ]
}

/// What `POST /free` did.
pub(crate) fn report(done: &Value) -> String {
    let places = |value: Option<&Value>| {
        let all: Vec<String> = value
            .and_then(Value::as_map)
            .into_iter()
            .flatten()
            .filter_map(|(device, held)| match held {
                Value::Int(held) if *held > 0 => Some(format!(
                    "{device} {}",
                    size(u64::try_from(*held).unwrap_or_default())
                )),
                _ => None,
            })
            .collect();
        if all.is_empty() {
            "nowhere".to_owned()
        } else {
            all.join(", ")
        }
    };
    let mut out = String::new();
    let workers = has_workers(done);
    let rows: Vec<Vec<String>> = items(done, "models")
        .iter()
        .map(|m| {
            let mut after = places(m.get("after"));
            if let Some(error) = m.get("error").and_then(Value::as_str) {
                let _ = write!(after, " ERROR: {error}");
            }
            let row = vec![
                text(m, "weights_id").to_owned(),
                places(m.get("before")),
                format!("-> {after}"),
            ];
            with_worker(workers, m, row)
        })
        .collect();
    if rows.is_empty() {
        out.push_str("  no model was in memory\n");
    }
    columns(&mut out, &rows);
    let (before, after) = (bytes(done, "ram_before"), bytes(done, "ram_after"));
    if before > 0 {
        let _ = writeln!(out, "  main memory: {} -> {}", size(before), size(after));
    }
    if done.get("cache_reset").is_some_and(Value::truthy) {
        out.push_str("  the results of nodes were forgotten\n");
    }
    out
}

/// The lines of a plan.
pub(crate) fn steps(plan: &Value) -> String {
    let steps = plan.as_list().unwrap_or_default();
    let named = |step: &Value| step.get("worker").is_some_and(|worker| !worker.is_null());
    let workers = steps.iter().any(named);
    if steps.is_empty() {
        return "  nothing would be done\n".to_owned();
    }
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|s| {
            let row = vec![
                text(s, "action").to_owned(),
                text(s, "weights_id").to_owned(),
                text(s, "device").to_owned(),
                size(bytes(s, "bytes")),
                text(s, "policy").to_owned(),
                text(s, "reason").to_owned(),
            ];
            with_worker(workers, s, row)
        })
        .collect();
    let mut out = String::new();
    columns(&mut out, &rows);
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use fresco_graph::json;

    use super::*;

    #[test]
    fn sizes() {
        for (bytes, want) in [
            (0, "0"),
            (5, "5 B"),
            (2048, "2.0 KiB"),
            (150 << 20, "150 MiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "17179869184 GiB"),
        ] {
            assert_eq!(size(bytes), want);
        }
        assert_eq!(bar(1, 0), format!("[{}]", "#".repeat(BAR)));
        assert_eq!(bar(0, 0), format!("[{}]", ".".repeat(BAR)));
    }

    #[test]
    fn a_table_of_everything() {
        let state = json::parse(
            r#"{"devices":[
                {"device":"cpu","total":8589934592,"free":4294967296},
                {"device":"sim:0","total":4294967296,"free":3221225472,"weights_resident":1073741824,"peak":2147483648}],
            "models":[
                {"weights_id":"sd15.safetensors#diffusion","bytes_total":1717986918,"state":"partial","demoted_by":"oom",
                 "residency":{"sim:0":1073741824},"host_bytes":644245094,"effective_policy":"keep","policy_source":"node_input",
                 "claims":[{"policy":"keep","source":"node_input","claimant":{"client_id":"c","node_id":"4"}}],
                 "leases":["0123456789"],"last_used":990000},
                {"weights_id":"v#vae","bytes_total":100,"state":"released","residency":{},"host_bytes":0,
                 "effective_policy":"auto","policy_source":"default","claims":[],"leases":[],"last_used":null}],
            "decisions":[
                {"seq":1,"kind":"plan.computed","decision":"keep","weights_id":"v#vae","bytes_before":5,"reason":"asked\nto be kept"},
                {"seq":2,"kind":"model.evicted","device":"sim:0","bytes_before":2048,"bytes_after":0,"error":"no"}],
            "last_seq":2}"#,
        )
        .unwrap();
        expect![[r"
            devices
              cpu    [############............]  4.0 GiB of 8.0 GiB used
              sim:0  [######..................]  1.0 GiB of 4.0 GiB used  weights 1.0 GiB, peak 2.0 GiB

            models
              ID                          SIZE     STATE          WHERE                       POLICY         HELD BY   LAST USE
              sd15.safetensors#diffusion  1.6 GiB  partial (oom)  sim:0 1.0 GiB, cpu 614 MiB  keep (node 4)  01234567  10 s ago
              v#vae                       100 B    released       file only                   auto           -         never

            last decisions
                plan.computed  keep  v#vae         5 B           asked to be kept
                model.evicted               sim:0  2.0 KiB -> 0   ERROR: no
        "]]
        .assert_eq(&overview(&state, 1_000_000));
        // With workers each line says whose it is.
        let far = r#"{"devices":[{"device":"cpu","total":1,"free":1}],
            "models":[{"weights_id":"a","bytes_total":1,"state":"resident","residency":{"sim:0":1},"worker":"gpu1",
                "effective_policy":"auto"}]}"#;
        let table = overview(&json::parse(far).unwrap(), 0);
        let lines: Vec<&str> = table.lines().map(str::trim_start).collect();
        assert!(
            lines.iter().any(|line| line.starts_with("here  cpu")),
            "{table}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with("WORKER  ID")),
            "{table}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with("gpu1    a ")),
            "{table}"
        );
        let nothing = overview(&Value::Null, 0);
        assert!(nothing.contains("none in memory") && nothing.contains("none yet"));
    }

    #[test]
    fn what_was_freed() {
        let done = json::parse(
            r#"{"models":[{"weights_id":"a","before":{"sim:0":1024,"cpu":0},"after":{"cpu":1024},"error":null},
                {"weights_id":"b","before":{"cpu":1024},"after":{},"error":"stuck"}],
                "ram_before":2048,"ram_after":1024,"cache_reset":true}"#,
        )
        .unwrap();
        let lines = [
            "  a  sim:0 1.0 KiB  -> cpu 1.0 KiB",
            "  b  cpu 1.0 KiB    -> nowhere ERROR: stuck",
            "  main memory: 2.0 KiB -> 1.0 KiB",
            "  the results of nodes were forgotten",
            "",
        ];
        assert_eq!(report(&done), lines.join("\n"));
        assert_eq!(steps(&Value::Null), "  nothing would be done\n");
    }
}
