//! One step of reduced transformers, and of SDXL in its full size, in f16, against the reference on a machine of the same size. Weights are made up: the
//! arithmetic is the same whatever they are.

use std::collections::BTreeMap;
use std::hint::black_box;

use anyhow::{Context, Result};
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_models::flux::{FluxConfig, FluxKind, FluxNetwork, MlpKind, ModulationKind};
use fresco_models::sd::unet::{UNet, UNetConfig};
use fresco_models::sd3::{Mmdit, Sd3Config};
use fresco_models::store::{Bias, Layout};
use fresco_models::{DiffusionNetwork, WeightStore};
use fresco_tensor::{Device, Dtype, Stored, synthetic};

use crate::gpu::listed;
use crate::kernels::{fastest, tensor};
use crate::{Measurement, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[("sd3", sd3), ("flux", flux), ("sdxl", sdxl)];

/// A network with weights that follow from their names.
fn network<N: DiffusionNetwork>(config: &N::Config) -> Result<N> {
    let layout = Layout::of(|weights| N::new(weights, config))?;
    let weights = layout.items().iter().map(|(key, shape)| {
        let value: Stored = synthetic::stored(key, shape, Dtype::F16)?;
        Ok((key.clone(), value))
    });
    let weights = weights.collect::<Result<BTreeMap<_, _>>>()?;
    let store = WeightStore::from_stored("made up", weights, Device::cpu());
    Ok(store.build(N::WHAT, |weights| N::new(weights, config))?)
}

/// Flux.1 dev with so many blocks of each kind.
pub(crate) fn flux_config(double: usize, single: usize) -> FluxConfig {
    FluxConfig {
        kind: FluxKind::Flux1,
        out_channels: 16,
        in_channels: 16,
        patch: 2,
        hidden: 3072,
        heads: 24,
        axes: vec![16, 56, 56],
        theta: 10000.0,
        context: 4096,
        vector: Some(768),
        guidance: true,
        double,
        single,
        mlp: 12288,
        mlp_kind: MlpKind::Gelu,
        modulation: ModulationKind::Own,
        bias: Bias::With,
        text_norm: false,
        text_axes: Vec::new(),
        pixels: None,
        reference_step: 1.0,
    }
}

/// Two blocks of each kind in the widths of Flux.1 dev, a picture of 64x64 pixels and a prompt of 256 tokens.
fn flux(table: &mut Table) -> Result<()> {
    let config = flux_config(2, 2);
    let net = network::<FluxNetwork>(&config)?;
    let mut conds = CallConds::default();
    let tokens = tensor(&[1, 256, 4096]);
    conds.0.insert("c_crossattn", CondValue::Regular(tokens));
    conds.0.insert("y", CondValue::Regular(tensor(&[1, 768])));
    conds.0.insert("guidance", CondValue::Regular(tensor(&[1])));
    let x = tensor(&[1, 16, 8, 8]);
    let input = NetworkInput {
        x: &x,
        timesteps: &[0.5],
        conds: &conds,
        control: None,
        hooks: &Hooks::default(),
    };
    DiffusionNetwork::forward(&net, &input).context("a pass")?;
    let ms = fastest(|| drop(black_box(DiffusionNetwork::forward(&net, &input))));
    let what = "Flux of 2 + 2 blocks, 64x64 pixels, a step";
    table.row(what, ms / 1000.0, "s", Some(2.0), "4.9 CPU s");
    Ok(())
}

/// Six blocks of width 384, as `tools/synth/lists/sd3_h384d6.txt` has them, with a picture of 64x64 pixels as the reference was measured,
/// and with one of 512x512.
fn sd3(table: &mut Table) -> Result<()> {
    let config = Sd3Config {
        width: 384,
        heads: 6,
        dual: vec![false; 6],
        qk_norm: false,
        context: 4096,
        pooled: 2048,
        in_channels: 16,
        out_channels: 16,
        positions: 192,
        mlp: 4,
    };
    let net = network::<Mmdit>(&config)?;
    let mut conds = CallConds::default();
    let tokens = tensor(&[2, 154, 4096]);
    conds.0.insert("c_crossattn", CondValue::Regular(tokens));
    conds.0.insert("y", CondValue::Regular(tensor(&[2, 2048])));
    for (pixels, limit, reference) in [(64, Some(0.35), "0.9 CPU s"), (512, None, "")] {
        let x = tensor(&[2, 16, pixels / 8, pixels / 8]);
        let input = NetworkInput {
            x: &x,
            timesteps: &[500.0, 500.0],
            conds: &conds,
            control: None,
            hooks: &Hooks::default(),
        };
        DiffusionNetwork::forward(&net, &input).context("a pass")?;
        let ms = fastest(|| drop(black_box(DiffusionNetwork::forward(&net, &input))));
        let what =
            format!("SD3 of 6 blocks of 384, {pixels}x{pixels} pixels, a step with guidance");
        table.row(&what, ms / 1000.0, "s", limit, reference);
    }
    Ok(())
}

/// The UNet of SDXL, a picture of 64x64 pixels with guidance. What the reference takes is measured beside it (`tools/bench/torch_steps.py`).
fn sdxl(table: &mut Table) -> Result<()> {
    let store = listed("sdxl", "model.diffusion_model.", Dtype::F16, &Device::cpu())?;
    let config = UNetConfig::detect(&store)?;
    let net = UNet::new(&store, &config)?;
    let mut conds = CallConds::default();
    let tokens = tensor(&[2, 77, 2048]);
    conds.0.insert("c_crossattn", CondValue::Regular(tokens));
    conds.0.insert("y", CondValue::Regular(tensor(&[2, 2816])));
    let x = tensor(&[2, 4, 8, 8]);
    let input = NetworkInput {
        x: &x,
        timesteps: &[500.0, 500.0],
        conds: &conds,
        control: None,
        hooks: &Hooks::default(),
    };
    DiffusionNetwork::forward(&net, &input).context("a pass")?;
    let ms = fastest(|| drop(black_box(DiffusionNetwork::forward(&net, &input))));
    let what = "SDXL, 64x64 pixels, a step with guidance";
    table.row(what, ms / 1000.0, "s", None, "");
    Ok(())
}
