//! Whole sampled runs: the golden has what came out, a golden beside it describes the network.
//!
//! What goes in follows from names, as weights do: `e2ef.pos` and `e2ef.pooled` for Flux, the noise from seed 99.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_models::flux::FluxNetwork;
use fresco_models::samplers::{
    self, Denoiser, SampleArgs, SampleError, SamplerName, SamplerOptions,
};
use fresco_models::{DiffusionNetwork, ModelSampling, Scheduler};
use fresco_tensor::{Device, Generator, Tensor, synthetic};

use super::{Kind, flux, pass};
use crate::golden::Golden;
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::own(
    "sampled runs of Flux",
    |golden| {
        let bare = golden.about.get("keys").is_none() && golden.number("vec_in_dim").is_some();
        bare && golden.tensors().iter().any(|name| case(name).is_some())
    },
    run,
)];

const SEED: u64 = 99;
/// Tokens of the prompt.
const WORDS: usize = 20;
const GUIDANCE: f64 = 3.5;

struct Case {
    sampler: SamplerName,
    scheduler: Scheduler,
    steps: usize,
}

/// `euler_ancestral_simple_4_cfg1`: sampler, scheduler, steps. Guidance is in the network.
fn case(name: &str) -> Option<Case> {
    let (names, steps) = name.strip_suffix("_cfg1")?.rsplit_once('_')?;
    let steps = steps.parse().ok()?;
    names.match_indices('_').find_map(|(at, _)| {
        let known = SamplerName::ALL.iter().find(|(n, _)| *n == &names[..at]);
        Some(Case {
            sampler: known?.1,
            scheduler: Scheduler::named(&names[at + 1..])?,
            steps,
        })
    })
}

/// The golden that has the keys of the network with this golden's config.
fn described(golden: &Golden) -> Result<Golden> {
    for folder in [golden.folder.as_path(), Path::new("tests/gold")] {
        let Ok(list) = std::fs::read_dir(folder) else {
            continue;
        };
        let mut names: Vec<String> = list
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
            .collect();
        names.sort();
        for name in names.iter().filter(|name| **name != golden.name) {
            let Ok(other) = Golden::open(folder, name) else {
                continue;
            };
            if other.config() == golden.config() && other.has_key("img_in.weight") {
                return Ok(other);
            }
        }
    }
    bail!("no golden describes the network of this config")
}

/// The network with its prompt.
struct Prompted<'a> {
    net: &'a FluxNetwork,
    sampling: &'a ModelSampling,
    conds: &'a CallConds,
}

impl Denoiser for Prompted<'_> {
    fn denoise(&mut self, x: &Tensor, sigma: f32) -> samplers::Result<Tensor> {
        let out = self.net.forward(&NetworkInput {
            x: &self.sampling.input(sigma, x),
            timesteps: &vec![self.sampling.timestep(sigma); x.dim(0)?],
            conds: self.conds,
            control: None,
            hooks: &hooks::of::<FluxNetwork>(),
        });
        let out = out.map_err(SampleError::model)?;
        Ok(self.sampling.denoised(sigma, &out, x)?)
    }
}

fn run(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let whole = described(golden)?;
    let config = flux::config(&whole)?;
    let net: FluxNetwork = pass::network(&whole, device, &config)?;
    let facts = FluxNetwork::facts(&config);
    let (context, pooled) = (golden.need("context_in_dim")?, golden.need("vec_in_dim")?);
    let mut conds = pass::conds([
        (
            "c_crossattn",
            Some(synthetic::value("e2ef.pos", &[1, WORDS, context], 1.5)?),
        ),
        (
            "y",
            Some(synthetic::value("e2ef.pooled", &[1, pooled], 1.0)?),
        ),
    ]);
    let guidance = Tensor::from_slice(&[GUIDANCE as f32]);
    conds.0.insert("guidance", CondValue::Regular(guidance));
    for name in golden.tensors() {
        let Some(case) = case(&name) else {
            continue;
        };
        let shape = golden.tensor(&name)?.shape().to_vec();
        let mut global = Generator::new(SEED);
        let noise = global.randn(&shape)?;
        let sampling = &facts.sampling;
        let mut sigmas = case.scheduler.sigmas(sampling, case.steps)?;
        let first = sigmas.first().copied().context("no noise levels")?;
        let empty = Tensor::zeros(shape)?;
        let x = sampling.noise_scaling(first, &noise, &empty, true)?;
        let mut model = Prompted {
            net: &net,
            sampling,
            conds: &conds,
        };
        let args = SampleArgs {
            sampling,
            seed: SEED,
            options: &SamplerOptions::default(),
            on_step: &mut |_| Ok(()),
            global: &mut global,
        };
        let x = samplers::sample(case.sampler, &mut model, x, &mut sigmas, args)?;
        report.check(&name, &facts.latent.process_out(&x)?)?;
    }
    Ok(())
}
