//! The transformer of Cosmos-Predict2, and Anima, which has it too.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use fresco_models::DiffusionNetwork;
use fresco_models::anima::lite::{LiteConfig, LiteControlNet, place_of};
use fresco_models::anima::{Anima, AnimaConfig, ConditionerConfig};
use fresco_models::cosmos::{CosmosConfig, CosmosDit, CosmosNetwork, FIRST};
use fresco_tensor::{Device, Stored};

use fresco_models::detect::Claim;

use super::{Kind, pass};
use crate::golden::{self, Golden};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion("Anima", "Anima", anima),
    Kind::of(Claim::ModelPatch, "control net in layers of Anima", lite)
        .with(|golden| golden.has_key("lllite_conditioning1.conv1.weight")),
    Kind::diffusion("Cosmos 1 and Cosmos-Predict2", "Cosmos", cosmos),
];

fn cosmos(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    // Made from the names of the file.
    let weights = golden.weights()?;
    let names: Vec<&str> = weights.keys().map(String::as_str).collect();
    let renamed = FIRST.keys(&names).into_iter();
    let renamed = renamed.filter_map(|(ours, theirs)| Some((ours, weights.get(theirs)?.clone())));
    let store = golden::store(&golden.name, renamed.collect(), device);
    let ratio = |axis: &str| {
        let name = format!("rope_{axis}_extrapolation_ratio");
        golden.float(&name).context(name)
    };
    let config = CosmosConfig {
        ratios: [ratio("t")?, ratio("h")?, ratio("w")?],
        ..CosmosConfig::detect(&store)?
    };
    let net = store.build("the transformer", |weights| {
        CosmosDit::new(weights, &config)
    })?;
    let (x, context) = (golden.tensor("x")?, golden.tensor("context")?);
    for (times, out) in [("t", "out"), ("t_frames", "out_t_frames")] {
        if golden.has(out) {
            let levels = golden.values(times)?;
            let found = net.forward(&x, &levels, &context, &hooks::of::<CosmosNetwork>(), &[])?;
            report.check(out, &found)?;
        }
    }
    for name in golden.tensors() {
        let Some(rate) = name.strip_prefix("out_fps") else {
            continue;
        };
        let rate = rate
            .parse()
            .with_context(|| format!("{name} has no number"))?;
        let levels = golden.values("t")?;
        let found = net.forward_at(
            &x,
            &levels,
            &context,
            Some(rate),
            &hooks::of::<CosmosNetwork>(),
        )?;
        report.check(&name, &found)?;
    }
    Ok(())
}

fn anima(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    // Made from the whole name, known without the start.
    let weights: BTreeMap<String, Stored> = golden
        .weights()?
        .into_iter()
        .map(|(key, value)| (key.trim_start_matches("net.").to_owned(), value))
        .collect();
    let store = golden::store(&golden.name, weights, device);
    let found = AnimaConfig::detect(&store)?;
    let rows = golden.about["text_conditioner"]["min_sequence_length"].as_u64();
    let ratios = golden.config()["rope_scale"]
        .as_array()
        .context("rope_scale")?;
    let ratio = |axis: usize| ratios.get(axis).and_then(serde_json::Value::as_f64);
    let config = AnimaConfig {
        text: ConditionerConfig {
            rows: rows.map_or(found.text.rows, |n| n as usize),
            ..found.text
        },
        dit: CosmosConfig {
            ratios: [0, 1, 2].map(|axis| ratio(axis).unwrap_or(1.0)),
            ..found.dit
        },
    };
    let net = store.build(Anima::WHAT, |weights| Anima::new(weights, &config))?;
    let (states, ids) = (golden.tensor("qwen")?, golden.tensor("t5_ids")?);
    let mask = golden.maybe("qwen_mask")?;
    let made = net.conditioner().forward(&states, mask.as_ref(), &ids)?;
    report.check("out.context", &net.conditioner().filled(made)?)?;
    let conds = pass::conds([
        ("c_crossattn", Some(states)),
        ("t5xxl_ids", Some(ids)),
        ("attention_mask", mask),
    ]);
    let x = golden.tensor("x")?;
    let level = golden.number_in_words(&["timestep"])? as f32;
    let levels = vec![level; x.dim(0)?];
    report.check("out.velocity", &pass::forward(&net, &x, &levels, &conds)?)
}

fn lite(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = LiteConfig::detect(&store, |name| golden.config()[name].as_str())?;
    let net = store.build("the control net", |weights| {
        LiteControlNet::new(weights, &config)
    })?;
    let picture = golden.tensor("picture")?.permute(&[0, 2, 3, 1])?;
    let seen = net.see(&picture)?;
    report.check("seen", &seen)?;
    let x = golden.tensor("x")?.to(device)?;
    for name in golden.tensors() {
        if let Some(layer) = name.strip_prefix("out/") {
            let place = place_of(layer).with_context(|| format!("no layer {layer}"))?;
            let made = net.layer(place, &x, &seen)?;
            report.check(&name, &made.context("it does not act there")?)?;
        }
    }
    Ok(())
}
