//! What `/memory` answers, as tables for people.

use std::fmt::Write as _;

use std::sync::Arc;

use fresco_cluster::protocol::memory::{
    DeviceState, EventState, FreeState, ModelState, OverviewState,
};
use fresco_engine::placement::{DeviceBytes, PlannedStep};
use jiff::Timestamp;
use jiff::tz::TimeZone;

const BAR: usize = 24;
/// Decisions that are shown.
const LAST: usize = 12;
/// Where a long reason is cut.
const REASON: usize = 90;

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
pub(crate) fn overview(state: &OverviewState, now_ms: i64) -> String {
    let OverviewState {
        devices,
        models,
        decisions,
        ..
    } = state;
    let mut out = String::from("devices\n");
    // Something is on another machine, or of one of several workers.
    let workers = devices.iter().any(|d| d.worker.is_some())
        || models.iter().any(|m| m.worker.is_some())
        || decisions.iter().any(|d| d.worker.is_some());
    if devices.is_empty() {
        out.push_str("  none are managed\n");
    }
    let rows = devices.iter();
    let rows = rows.map(|d| with_worker(workers, d.worker.as_ref(), device(d)));
    columns(&mut out, &rows.collect::<Vec<_>>());

    out.push_str("\nmodels\n");
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
        let others = models.iter();
        rows.extend(others.map(|m| with_worker(workers, m.worker.as_ref(), model(m, now_ms))));
        columns(&mut out, &rows);
    }

    out.push_str("\nlast decisions\n");
    if decisions.is_empty() {
        out.push_str("  none yet\n");
    }
    let last = decisions[decisions.len().saturating_sub(LAST)..].iter();
    let rows = last.map(|d| with_worker(workers, d.worker.as_ref(), decision(d)));
    columns(&mut out, &rows.collect::<Vec<_>>());
    out
}

/// A row that begins with whose it is.
fn with_worker(workers: bool, worker: Option<&Arc<str>>, mut row: Vec<String>) -> Vec<String> {
    if workers {
        row.insert(0, worker.map_or("here", |worker| worker).to_owned());
    }
    row
}

fn device(device: &DeviceState) -> Vec<String> {
    let used = device.total.saturating_sub(device.free);
    let notes = [
        (device.weights_resident, "weights"),
        (device.weights_buffer, "for streaming"),
        (device.reserved, "reserved"),
        (device.pinned_host, "pinned"),
        (device.peak, "peak"),
    ];
    let notes = notes.into_iter().filter(|(amount, _)| *amount > 0);
    let notes: Vec<String> = notes
        .map(|(amount, name)| format!("{name} {}", size(amount)))
        .collect();
    vec![
        device.device.to_string(),
        bar(used, device.total),
        format!("{} of {} used", size(used), size(device.total)),
        notes.join(", "),
    ]
}

/// `sim:0 1.0 GiB`, for each place that has something.
fn places(bytes: &DeviceBytes) -> Vec<String> {
    let held = bytes.iter().filter(|(_, held)| **held > 0);
    held.map(|(device, held)| format!("{device} {}", size(*held)))
        .collect()
}

fn model(model: &ModelState, now_ms: i64) -> Vec<String> {
    let mut places = places(&model.residency);
    if model.host_bytes > 0 {
        places.push(format!("cpu {}", size(model.host_bytes)));
    }
    if places.is_empty() {
        places.push("file only".to_owned());
    }
    let mut state = model.state.to_string();
    if let Some(why) = &model.demoted_by {
        let _ = write!(state, " ({why})");
    }
    let leases = model.leases.iter();
    let leases: Vec<String> = leases.map(|id| id.chars().take(8).collect()).collect();
    let used = model.last_used.map_or_else(
        || "never".to_owned(),
        |at| ago(now_ms, i64::try_from(at).unwrap_or(now_ms)),
    );
    vec![
        model.weights_id.to_string(),
        size(model.bytes_total),
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
fn policy(model: &ModelState) -> String {
    let effective = &model.effective_policy;
    let source = match &*model.policy_source {
        "" | "default" => return effective.to_string(),
        "api" => "api".to_owned(),
        source => {
            let mut claims = model.claims.iter();
            let by = claims.find(|c| c.policy == *effective && &*c.source == source);
            let node = by.map(|claim| &*claim.claimant.node_id);
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

fn clock(at: u64) -> String {
    let at = i64::try_from(at).ok().filter(|at| *at > 0);
    at.and_then(|at| Timestamp::from_millisecond(at).ok())
        .map(|at| {
            let zoned = at.to_zoned(TimeZone::system());
            zoned.strftime("%H:%M:%S").to_string()
        })
        .unwrap_or_default()
}

fn decision(event: &EventState) -> Vec<String> {
    let change = match (event.bytes_before, event.bytes_after) {
        (Some(before), Some(after)) => format!("{} -> {}", size(before), size(after)),
        (Some(only), None) | (None, Some(only)) => size(only),
        (None, None) => String::new(),
    };
    let text = |text: &Option<Arc<str>>| text.as_deref().unwrap_or_default().to_owned();
    let mut why = text(&event.reason);
    if let Some(error) = &event.error {
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
        clock(event.time),
        event.kind.to_string(),
        text(&event.decision),
        text(&event.weights_id),
        text(&event.device),
        change,
        why,
    ]
}

/// What `POST /free` did.
pub(crate) fn report(done: &FreeState) -> String {
    let shown = |bytes: &DeviceBytes| {
        let places = places(bytes);
        if places.is_empty() {
            "nowhere".to_owned()
        } else {
            places.join(", ")
        }
    };
    let mut out = String::new();
    let workers = done.models.iter().any(|m| m.worker.is_some());
    let rows = done.models.iter().map(|model| {
        let mut after = shown(&model.after);
        if let Some(error) = &model.error {
            let _ = write!(after, " ERROR: {error}");
        }
        let row = vec![
            model.weights_id.to_string(),
            shown(&model.before),
            format!("-> {after}"),
        ];
        with_worker(workers, model.worker.as_ref(), row)
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        out.push_str("  no model was in memory\n");
    }
    columns(&mut out, &rows);
    if let Some(before) = done.ram_before.filter(|before| *before > 0) {
        let after = done.ram_after.unwrap_or_default();
        let _ = writeln!(out, "  main memory: {} -> {}", size(before), size(after));
    }
    if done.cache_reset {
        out.push_str("  the results of nodes were forgotten\n");
    }
    out
}

/// The lines of a plan.
pub(crate) fn steps(plan: &[PlannedStep]) -> String {
    if plan.is_empty() {
        return "  nothing would be done\n".to_owned();
    }
    let workers = plan.iter().any(|step| step.worker.is_some());
    let rows = plan.iter().map(|step| {
        let row = vec![
            step.action.name().to_owned(),
            step.weights_id.to_string(),
            step.device.as_deref().unwrap_or_default().to_owned(),
            size(step.bytes),
            step.policy.to_string(),
            step.reason.to_string(),
        ];
        with_worker(workers, step.worker.as_ref(), row)
    });
    let mut out = String::new();
    columns(&mut out, &rows.collect::<Vec<_>>());
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use fresco_cluster::protocol::memory::{ClaimState, Claimant};
    use fresco_engine::placement::FreedModel;

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
        let device = |name: &str, total, free| DeviceState {
            device: name.into(),
            total,
            free,
            ..DeviceState::default()
        };
        let state = OverviewState {
            devices: vec![
                device("cpu", 8 << 30, 4 << 30),
                DeviceState {
                    weights_resident: 1 << 30,
                    peak: 2 << 30,
                    ..device("sim:0", 4 << 30, 3 << 30)
                },
            ],
            models: vec![
                ModelState {
                    weights_id: "sd15.safetensors#diffusion".into(),
                    bytes_total: 1_717_986_918,
                    state: "partial".into(),
                    demoted_by: Some("oom".into()),
                    residency: [("sim:0".into(), 1 << 30)].into(),
                    host_bytes: 644_245_094,
                    effective_policy: "keep".into(),
                    policy_source: "node_input".into(),
                    claims: vec![ClaimState {
                        policy: "keep".into(),
                        source: "node_input".into(),
                        claimant: Claimant {
                            client_id: "c".into(),
                            node_id: "4".into(),
                        },
                        ..ClaimState::default()
                    }],
                    leases: vec!["0123456789".into()],
                    last_used: Some(990_000),
                    ..ModelState::default()
                },
                ModelState {
                    weights_id: "v#vae".into(),
                    bytes_total: 100,
                    state: "released".into(),
                    effective_policy: "auto".into(),
                    policy_source: "default".into(),
                    ..ModelState::default()
                },
            ],
            decisions: vec![
                EventState {
                    kind: "plan.computed".into(),
                    decision: Some("keep".into()),
                    weights_id: Some("v#vae".into()),
                    bytes_before: Some(5),
                    reason: Some("asked\nto be kept".into()),
                    ..EventState::default()
                },
                EventState {
                    kind: "model.evicted".into(),
                    device: Some("sim:0".into()),
                    bytes_before: Some(2048),
                    bytes_after: Some(0),
                    error: Some("no".into()),
                    ..EventState::default()
                },
            ],
            ..OverviewState::default()
        };
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
        let far = OverviewState {
            devices: vec![device("cpu", 1, 1)],
            models: vec![ModelState {
                weights_id: "a".into(),
                worker: Some("gpu1".into()),
                ..ModelState::default()
            }],
            ..OverviewState::default()
        };
        let table = overview(&far, 0);
        let lines: Vec<&str> = table.lines().map(str::trim_start).collect();
        for start in ["here  cpu", "WORKER  ID", "gpu1    a "] {
            let found = lines.iter().any(|line| line.starts_with(start));
            assert!(found, "{start} in {table}");
        }
        let nothing = overview(&OverviewState::default(), 0);
        assert!(nothing.contains("none in memory") && nothing.contains("none yet"));
    }

    #[test]
    fn what_was_freed() {
        let model =
            |id: &str, before: DeviceBytes, after: DeviceBytes, error: Option<&str>| FreedModel {
                weights_id: id.into(),
                before,
                after,
                error: error.map(str::to_owned),
                worker: None,
            };
        let cpu = || DeviceBytes::from([("cpu".into(), 1024)]);
        let sim = DeviceBytes::from([("sim:0".into(), 1024), ("cpu".into(), 0)]);
        let done = FreeState {
            models: vec![
                model("a", sim, cpu(), None),
                model("b", cpu(), DeviceBytes::new(), Some("stuck")),
            ],
            ram_before: Some(2048),
            ram_after: Some(1024),
            cache_reset: true,
            ..FreeState::default()
        };
        let lines = [
            "  a  sim:0 1.0 KiB  -> cpu 1.0 KiB",
            "  b  cpu 1.0 KiB    -> nowhere ERROR: stuck",
            "  main memory: 2.0 KiB -> 1.0 KiB",
            "  the results of nodes were forgotten",
            "",
        ];
        assert_eq!(report(&done), lines.join("\n"));
        assert_eq!(steps(&[]), "  nothing would be done\n");
    }
}
