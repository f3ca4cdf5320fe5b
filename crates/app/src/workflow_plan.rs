//! How a workflow would run here: which models it loads, where they go, what fits. For `fresco doctor`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use fresco_graph::ui::NodeDefs;
use fresco_graph::{Map, PromptLimits, Resources, Rules};
use fresco_memory::{Policy, Registry, amount::readable};
use fresco_nodes::admission::{self, Assessment, ModelPlan, Outcome, Verdict};

use crate::doctor::Report;
use crate::house::House;
use crate::settings::ExecSettings;
use crate::workflow_file;

/// Adds the plan of a workflow's models to a report.
pub(crate) fn show(report: &mut Report, house: &House, settings: &ExecSettings, file: &Path) {
    report.heading("workflow");
    let prompt = match read(house, file) {
        Ok(prompt) => prompt,
        Err(error) => {
            report.problem("file", crate::logging::chain(error.as_ref()));
            return;
        }
    };
    report.line("file", format!("{} ({} nodes)", file.display(), prompt.len()));
    let memory = settings.memory.registry();
    check(report, house, &memory, &prompt);
    let found = admission::assess(&prompt, &house.folders, &memory);
    if let Some(latent) = &found.latent {
        let (width, height, batch) = (latent.width, latent.height, latent.batch);
        report.line("picture", format!("{width} x {height}, batch of {batch}"));
    }
    for plan in &found.models {
        model(report, plan);
    }
    conclude(report, &found, &memory);
}

fn read(house: &House, file: &Path) -> anyhow::Result<Map> {
    let bytes = workflow_file::read(file)?;
    let defs = NodeDefs::new(&house.object_info().into());
    let found = workflow_file::understand(&bytes, &defs, false);
    let found = found.with_context(|| file.display().to_string())?;
    for warning in &found.warnings {
        tracing::warn!("{warning}");
    }
    Ok(found.prompt)
}

/// What the server would refuse it for.
fn check(report: &mut Report, house: &House, memory: &Registry, prompt: &Map) {
    let mut resources = Resources::default();
    resources.insert((*house.dirs).clone());
    resources.insert(house.folders.clone());
    resources.insert(memory.clone());
    let rules = Rules {
        registry: &house.registry,
        listings: &*house.listings,
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
        .map(|file| file.file_name().unwrap_or_default().to_string_lossy().into_owned())
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
        computes += &format!(", {} beside its weights", readable(plan.required));
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
        let layers = format!("{} layers from {} to {}", shard.layers, shard.first, shard.last);
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

fn conclude(report: &mut Report, found: &Assessment, memory: &Registry) {
    if found.models.is_empty() {
        report.line("models", "none are loaded");
        return;
    }
    for device in &found.devices {
        let kept = if device.reserved > 0 {
            format!(", {} of it kept for computing", readable(device.reserved))
        } else {
            String::new()
        };
        let size = readable(device.total);
        let wanted = readable(device.wanted);
        report.line(
            &device.device,
            format!("{size}{kept}; {wanted} wanted at one time"),
        );
    }
    report.line("vram state", memory.settings().state.name());
    match &found.verdict {
        Verdict::Fits => report.line("verdict", "everything fits"),
        Verdict::Streams(how) => report.line("verdict", format!("runs, slower: {how}")),
        Verdict::Refused(why) => report.problem("verdict", why),
    }
}
