//! FLUX.3 klein, base and distilled.

use anyhow::{Context, Result};
use fresco_models::DiffusionNetwork;
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_models::flux3::{Flux3Config, Flux3Network};
use fresco_tensor::{Device, Tensor};
use serde_json::Value;

use super::Kind;
use crate::golden::{self, Golden, sizes};
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::diffusion("FLUX.3 klein", "FLUX.3", run)];

/// Tokens (b, n, c) as a latent.
fn latent(tokens: &Tensor, grid: &[usize]) -> Result<Tensor> {
    let [b, _, c] = tokens.dims3()?;
    let cells = tokens.permute(&[0, 2, 1])?;
    Ok(cells.reshape([b, c, grid[0], grid[1]])?)
}

fn run(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let only = golden.about["keys_only_distilled"].as_array();
    let only: Vec<&str> = only
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (kind, distilled) in [("base", false), ("distilled", true)] {
        let mut weights = golden.weights()?;
        if !distilled {
            weights.retain(|key, _| !only.contains(&key.as_str()));
        }
        let store = golden::store(&golden.name, weights, device);
        let config = Flux3Config {
            axes: golden.numbers("axes_dims_rope").context("axes_dims_rope")?,
            theta: golden.float("rope_theta").context("rope_theta")?,
            ..Flux3Config::detect(&store)?
        };
        let net = store.build(Flux3Network::WHAT, |weights| {
            Flux3Network::new(weights, &config)
        })?;
        cases(golden, kind, &net, report)?;
    }
    Ok(())
}

fn cases(golden: &Golden, kind: &str, net: &Flux3Network, report: &mut Report<'_>) -> Result<()> {
    // The level of the golden and, of distilled networks, the one after it.
    let level = golden.number_in_words(&["timestep"])? as f32;
    let after = golden.optional_number_in_words(&["target timestep", "target_timestep"]);
    let schedule: Vec<f32> = [Some(level), after.map(|n| n as f32), Some(0.0)]
        .into_iter()
        .flatten()
        .collect();
    let hooks = Hooks {
        schedule: schedule.into(),
        ..hooks::of::<Flux3Network>()
    };
    let cases = golden.about["cases"].as_array().context("cases")?;
    for (number, case) in cases.iter().enumerate() {
        let out = format!("out.{kind}.{number}");
        if !golden.has(&out) {
            continue;
        }
        let of = |name: &str| golden.tensor(&format!("{number}.{name}"));
        let grid = sizes(&case["grid"]).context("grid")?;
        let x = latent(&of("x")?, &grid)?;
        let mut conds = CallConds::default();
        let prompt = CondValue::Regular(of("txt")?);
        conds.0.insert("c_crossattn", prompt);
        let references = case["refs"].as_array().context("refs")?;
        if !references.is_empty() {
            let all = of("cond")?;
            let (mut start, mut list) = (0, Vec::new());
            for reference in references {
                let grid = sizes(reference).context("refs")?;
                let count = grid[0] * grid[1];
                list.push(latent(&all.narrow(1, start, count)?, &grid)?);
                start += count;
            }
            conds.0.insert("ref_latents", CondValue::List(list));
        }
        let found = net.forward(&NetworkInput {
            x: &x,
            timesteps: &vec![level; x.dim(0)?],
            conds: &conds,
            control: hooks::control().as_ref(),
            hooks: &hooks,
        })?;
        let [b, c, h, w] = found.dims4()?;
        let tokens = found.reshape([b, c, h * w])?.permute(&[0, 2, 1])?;
        report.check(&out, &tokens)?;
    }
    Ok(())
}
