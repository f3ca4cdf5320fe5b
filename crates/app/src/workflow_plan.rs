//! How a workflow would run here: which models it loads, where they go, what fits. For `fresco doctor`.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use fresco_graph::{Map, PromptLimits, Resources, Rules};
use fresco_memory::{ModelRegistry, Policy, amount::readable};
use fresco_models::detect::Families;
use fresco_nodes::admission::{self, Assessment, ModelPlan, Outcome, Verdict};

use crate::assembly::Assembly;
use crate::report::Report;
use crate::settings::ExecSettings;
use crate::workflow_file;

/// Adds the plan of a workflow's models to a report.
pub(crate) fn show(report: &mut Report, assembly: &Assembly, settings: &ExecSettings, file: &Path) {
    report.heading("workflow");
    let prompt = match read(assembly, file) {
        Ok(prompt) => prompt,
        Err(error) => {
            report.problem("file", crate::logging::chain(error.as_ref()));
            return;
        }
    };
    report.line(
        "file",
        format!("{} ({} nodes)", file.display(), prompt.len()),
    );
    let memory = settings.memory.registry();
    check(report, assembly, &memory, &prompt);
    let found = admission::assess(&prompt, &assembly.folders, &Families::default(), &memory);
    if let Some(latent) = &found.latent {
        let (width, height, batch) = (latent.width, latent.height, latent.batch);
        report.line("picture", format!("{width} x {height}, batch of {batch}"));
    }
    for plan in &found.models {
        model(report, plan);
    }
    conclude(report, &found, &memory);
}

fn read(assembly: &Assembly, file: &Path) -> anyhow::Result<Map> {
    let bytes = workflow_file::read(file)?;
    let defs = assembly.node_defs();
    let found = workflow_file::understand(&bytes, &defs, false);
    let found = found.with_context(|| file.display().to_string())?;
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    Ok(found.prompt)
}

/// What the server would refuse it for.
fn check(report: &mut Report, assembly: &Assembly, memory: &ModelRegistry, prompt: &Map) {
    let unknown = workflow_file::unknown_nodes(prompt, &assembly.registry.snapshot());
    for node in &unknown {
        report.problem(
            node,
            "its class is not one of this program; does it come from a Python pack?",
        );
    }
    if !unknown.is_empty() {
        // Everything else could only be said of a prompt without them.
        return;
    }
    let mut resources = Resources::default();
    resources.insert((*assembly.dirs).clone());
    resources.insert(assembly.folders.clone());
    resources.insert(memory.clone());
    let rules = Rules {
        registry: &assembly.registry.snapshot(),
        listings: &*assembly.listings,
        resources: &Arc::new(resources),
        limits: PromptLimits::default(),
    };
    let problems = match rules.validate(prompt.clone(), None) {
        Ok(valid) => valid.problems,
        Err(error) if error.nodes.is_empty() => {
            report.problem("prompt", error.to_string());
            return;
        }
        Err(error) => error.nodes,
    };
    for (id, node) in &problems {
        for error in &node.errors {
            let what = format!("node {id} ({})", node.class);
            report.problem(&what, format!("{}: {}", error.message, error.details));
        }
    }
}

fn model(report: &mut Report, plan: &ModelPlan) {
    let what = format!("node {} ({})", plan.node, plan.class);
    let names: Vec<String> = plan
        .files
        .iter()
        .map(|file| {
            file.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let names = names.join(" + ");
    if let Outcome::Unknown(why) = &plan.outcome {
        report.problem(&what, format!("{} of {names}: {why}", plan.component));
        return;
    }
    report.line(
        &what,
        format!(
            "{} of {names}: {}, {} in {} layers, the largest {}",
            plan.component,
            plan.what,
            readable(plan.bytes),
            plan.layers,
            readable(plan.largest)
        ),
    );
    let mut computes = plan.compute.clone();
    if plan.required > 0 {
        let _ = write!(computes, ", {} beside its weights", readable(plan.required));
    }
    report.line("  computes on", computes);
    let places: Vec<String> = plan
        .places
        .iter()
        .map(|(device, bytes)| format!("{} on {device}", readable(*bytes)))
        .collect();
    report.line("  weights", places.join(", "));
    if let Some(placement) = &plan.placement {
        report.line("  placement", placement);
    }
    for shard in &plan.shards {
        let mut layers = format!("{} layers", shard.layers);
        if let Some((first, last)) = &shard.span {
            let _ = write!(layers, ", {first} to {last}");
        }
        report.line(&format!("  on {}", shard.device), layers);
    }
    if plan.policy != Policy::Auto {
        report.line("  retention", plan.policy.to_string());
    }
    match &plan.outcome {
        Outcome::Streams(how) => report.line("  streams", how),
        Outcome::Refused(why) => report.line("  cannot run", why),
        Outcome::Fits | Outcome::Placed | Outcome::Unknown(_) => {}
    }
    for warning in &plan.warnings {
        report.line("  warning", warning);
    }
}

fn unknown(plan: &ModelPlan) -> bool {
    matches!(plan.outcome, Outcome::Unknown(_))
}

fn conclude(report: &mut Report, found: &Assessment, memory: &ModelRegistry) {
    if found.models.is_empty() {
        report.line("models", "none are loaded");
        return;
    }
    for device in &found.devices {
        let kept = match device.reserved {
            0 => String::new(),
            bytes if bytes >= device.total => ", all of it kept for computing".to_owned(),
            bytes => format!(", {} of it kept for computing", readable(bytes)),
        };
        let size = readable(device.total);
        let wanted = readable(device.wanted);
        report.line(
            &device.device,
            format!("{size}{kept}; {wanted} wanted at one time"),
        );
    }
    report.line("vram state", memory.settings().state.name());
    let unknown: Vec<&str> = found
        .models
        .iter()
        .filter(|plan| unknown(plan))
        .map(|plan| &*plan.node)
        .collect();
    match &found.verdict {
        Verdict::Fits | Verdict::Streams(_) if !unknown.is_empty() => {
            // What is wrong with each of them was said above, and counted.
            let nodes = if unknown.len() == 1 { "node" } else { "nodes" };
            let list = unknown.join(", ");
            report.line(
                "verdict",
                format!("unknown: the files of {nodes} {list} are missing or cannot be read"),
            );
        }
        Verdict::Fits => report.line("verdict", "everything fits"),
        Verdict::Streams(how) => report.line("verdict", format!("runs, slower: {how}")),
        Verdict::Refused(why) => report.problem("verdict", why),
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;
    use fresco_files::DirOptions;
    use fresco_graph::{Value, json, map};

    use super::*;
    use crate::cli::{Cli, command};
    use crate::settings::{FolderSettings, ServeSettings};

    /// A network whose file has its header only.
    fn write_network(base: &Path) {
        let gold = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/gold");
        let about = std::fs::read(Path::new(gold).join("unet_sd1_small.json")).unwrap();
        let about = json::parse_bytes(&about).unwrap();
        let (mut header, mut at) = (Map::new(), 0);
        for (key, shape) in about.get("keys").and_then(Value::as_map).unwrap() {
            let sizes = shape.as_list().unwrap().iter();
            let end = at + sizes.map(|n| n.as_int().unwrap() as u64).product::<u64>() * 4;
            let offsets = vec![at, end];
            let entry =
                map! {"dtype" => "F32", "shape" => shape.clone(), "data_offsets" => offsets};
            header.insert(key.clone(), entry.into());
            at = end;
        }
        let header = json::to_string(&header.into());
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        let folder = base.join("models/unet");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("small.safetensors");
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::File::options().append(true).open(path).unwrap();
        file.set_len(bytes.len() as u64 + at).unwrap();
    }

    fn plan(base: &Path, flags: &str, inputs: Map) -> (String, usize) {
        let words = ["fresco"].into_iter().chain(flags.split_whitespace());
        let matches = command().try_get_matches_from(words).unwrap();
        let cli = Cli::from_arg_matches(&matches).unwrap();
        let settings = ServeSettings::resolve(cli.serve).unwrap();
        settings.exec.memory.register_devices().unwrap();
        let dirs = DirOptions {
            program: base.into(),
            base: Some(base.into()),
            ..DirOptions::default()
        };
        let assembly = Assembly::open(&FolderSettings {
            dirs,
            extra_paths: Vec::new(),
            starter: None,
        })
        .unwrap();
        let prompt = map! {
            "1" => map! {"class_type" => "UNETLoaderDisTorch2MultiGPU", "inputs" => inputs},
            "2" => map! {
                "class_type" => "ModelSave",
                "inputs" => map! {"model" => vec![Value::from("1"), 0.into()], "filename_prefix" => "x"},
            },
        };
        let file = base.join("workflow.json");
        std::fs::write(&file, json::to_string(&prompt.into())).unwrap();
        let mut report = Report::default();
        show(&mut report, &assembly, &settings.exec, &file);
        (report.text().to_owned(), report.problems())
    }

    #[track_caller]
    fn has(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn plans_are_shown_with_places_and_a_verdict() {
        let dir = tempfile::tempdir().unwrap();
        write_network(dir.path());
        let inputs = |more: Map| {
            let mut inputs = map! {"unet_name" => "small.safetensors", "weight_dtype" => "default"};
            inputs.extend(more);
            inputs
        };
        let flags = |number: u32, size: &str| {
            format!("--sim-device sim:{number}={size} --reserve-vram 0 --inference-reserve 0")
        };
        let expert = map! {"compute_device" => "sim:7901", "expert_mode_allocations" => "sim:7901,25%;cpu,*", "retention" => "keep"};
        let (text, problems) = plan(dir.path(), &flags(7901, "64MiB"), inputs(expert));
        assert_eq!(problems, 0, "{text}");
        has(
            &text,
            &[
                "node 1 (UNETLoaderDisTorch2MultiGPU): diffusion of small.safetensors: SD1.x, 12 MiB",
                "computes on: sim:7901",
                "placement: sim:7901,25",
                "on cpu: ",
                " layers, time_embed.0 to ",
                "retention: keep",
                "sim:7901: 64 MiB",
                "verdict: everything fits",
            ],
        );
        let whole = |number: u32| {
            let device = format!("sim:{number}");
            inputs(map! {"compute_device" => device, "virtual_vram_gb" => 0})
        };
        let (text, problems) = plan(dir.path(), &flags(7902, "8MiB"), whole(7902));
        assert_eq!(problems, 0, "{text}");
        has(
            &text,
            &["verdict: runs, slower: SD1.x of 12 MiB does not fit on sim:7902"],
        );
        // A device that is smaller than what is usually kept for computing.
        let (text, _) = plan(dir.path(), "--sim-device sim:7904=64MiB", whole(7904));
        has(&text, &["sim:7904: 64 MiB, all of it kept for computing; "]);
        let (text, problems) = plan(dir.path(), &flags(7903, "64KiB"), whole(7903));
        assert_eq!(problems, 1, "{text}");
        has(
            &text,
            &[
                "verdict: PROBLEM: SD1.x cannot run on sim:7903",
                "a device with at least",
            ],
        );
    }

    #[test]
    fn what_the_server_would_refuse_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = map! {
            "unet_name" => "gone.safetensors", "weight_dtype" => "default", "expert_mode_allocations" => "nowhere,1g",
        };
        let (text, problems) = plan(dir.path(), "", inputs);
        assert!(problems >= 2, "{text}");
        has(
            &text,
            &["Value not in list", "unknown_device at 0", "unknown device"],
        );
        assert!(!text.contains("fits"), "{text}");
        let inputs = map! {"unet_name" => "gone.safetensors", "weight_dtype" => "default"};
        let (text, problems) = plan(dir.path(), "", inputs);
        assert!(problems >= 1, "{text}");
        has(
            &text,
            &["verdict: unknown: the files of node 1 are missing or cannot be read"],
        );
        assert!(!text.contains("fits"), "{text}");
        let mut report = Report::default();
        let settings = FolderSettings {
            dirs: DirOptions {
                program: dir.path().into(),
                base: Some(dir.path().into()),
                ..DirOptions::default()
            },
            extra_paths: Vec::new(),
            starter: None,
        };
        let assembly = Assembly::open(&settings).unwrap();
        let matches = command().try_get_matches_from(["fresco"]).unwrap();
        let serve = Cli::from_arg_matches(&matches).unwrap().serve;
        let exec = ServeSettings::resolve(serve).unwrap().exec;
        show(&mut report, &assembly, &exec, &dir.path().join("no.json"));
        let (text, problems) = (report.text(), report.problems());
        assert_eq!(problems, 1, "{text}");
        has(text, &["file: PROBLEM", "no.json"]);
    }
}
