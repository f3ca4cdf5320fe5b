//! Full-size networks on the first GPU: time of a step, memory, and what of it is repeated as a graph. Weights are made up
//! once for each shape, because the arithmetic is the same whatever they are.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use fresco_models::denoise::hooks::Hooks;
use fresco_models::denoise::{CallConds, CondValue, NetworkInput};
use fresco_models::flux::FluxNetwork;
use fresco_models::sd::unet::{UNet, UNetConfig};
use fresco_models::store::Layout;
use fresco_models::vae::kl::KlVae;
use fresco_models::{DiffusionNetwork, WeightStore};
use fresco_synth::list;
use fresco_tensor::{Device, Dtype, Stored, Tensor, synthetic};

use crate::kernels::tensor;
use crate::transformers::flux_config;
use crate::{Measurement, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] =
    &[("sd15", sd15), ("sdxl", sdxl), ("flux", flux), ("vae", vae)];

/// Weights of names and shapes, those of one shape being the same.
fn weights(
    items: impl Iterator<Item = (String, Vec<usize>)>,
    dtype: Dtype,
) -> Result<BTreeMap<String, Stored>> {
    let mut made: BTreeMap<(Vec<usize>, bool), Stored> = BTreeMap::new();
    let mut all = BTreeMap::new();
    for (name, shape) in items {
        let key = (
            shape.clone(),
            name.ends_with("norm.weight") || shape.len() == 1,
        );
        let value = match made.get(&key) {
            Some(value) => value.clone(),
            None => synthetic::stored(&name, &shape, dtype)?,
        };
        made.insert(key, value.clone());
        all.insert(name, value);
    }
    Ok(all)
}

/// A store of a part of a list of `tools/synth`.
fn listed(name: &str, prefix: &str, dtype: Dtype, device: &Device) -> Result<Arc<WeightStore>> {
    let items = list::load(name)?.into_iter().filter_map(|item| {
        let key = item.name.strip_prefix(prefix)?;
        Some((key.to_owned(), item.shape))
    });
    let weights = weights(items, dtype)?;
    Ok(WeightStore::from_stored("made up", weights, device.clone()))
}

/// Puts all layers onto the device.
fn place(store: &WeightStore, device: &Device) -> Result<()> {
    for unit in store.units() {
        store.move_unit(&unit.name, device)?;
    }
    store.finish_moves()?;
    Ok(device.synchronize()?)
}

/// Milliseconds of a step, the first time and after some.
fn time(device: &Device, key: u64, step: impl Fn() -> Result<Tensor>) -> Result<(f64, f64)> {
    let timed = || {
        let begun = Instant::now();
        let out = device.repeated(key, &step)?;
        black_box(out);
        anyhow::Ok(begun.elapsed().as_secs_f64() * 1000.0)
    };
    let first = timed()?;
    for _ in 0..3 {
        timed()?;
    }
    let (_, kernels) = device.profiled(&step)?;
    let total: f64 = kernels.iter().map(|kernel| kernel.milliseconds).sum();
    eprintln!("  kernels: {total:.2} ms");
    for kernel in kernels.iter().take(16) {
        eprintln!(
            "    {:8.3} ms {:5} x {}",
            kernel.milliseconds, kernel.starts, kernel.kernel
        );
    }
    let repeats = || device.gpu().map_or(0, |gpu| gpu.repeats);
    let before = repeats();
    let mut all: Vec<f64> = (0..20).map(|_| timed()).collect::<Result<_>>()?;
    eprintln!("  {} of 20 as graphs", repeats() - before);
    all.sort_by(f64::total_cmp);
    Ok((first, all[all.len() / 2]))
}

/// What a measurement is called, its limit, and what the reference takes.
struct Row {
    what: &'static str,
    limit: f64,
    reference: &'static str,
    /// GiB that the reference takes.
    memory: Option<f64>,
}

fn report(table: &mut Table, device: &Device, row: &Row, (first, each): (f64, f64)) {
    table.row(row.what, each, "ms", Some(row.limit), row.reference);
    table.row(format!("{}: the first", row.what), first, "ms", None, "");
    let peak = device.peak() as f64 / f64::from(1 << 30);
    let limit = row.memory.map(|gib| 0.9 * gib);
    table.row(format!("{}: memory", row.what), peak, "GiB", limit, "");
}

fn unet(table: &mut Table, list: &str, sizes: &[(usize, usize, Row)]) -> Result<()> {
    let device = Device::cuda(0)?;
    device.reset_peak();
    let prefix = "model.diffusion_model.";
    let store = listed(list, prefix, Dtype::F16, &device)?;
    let config = UNetConfig::detect(&store)?;
    let net = UNet::new(&store, &config)?;
    place(&store, &device)?;
    for (batch, side, row) in sizes {
        device.reset_peak();
        let items = 2 * batch;
        let mut conds = CallConds::default();
        let width = config.context_dim.unwrap_or(768);
        let tokens = tensor(&[items, 77, width]);
        conds.0.insert("c_crossattn", CondValue::Regular(tokens));
        if let Some(adm) = config.adm {
            let y = CondValue::Regular(tensor(&[items, adm]));
            conds.0.insert("y", y);
        }
        let x = tensor(&[items, 4, *side, *side]);
        let hooks = Hooks::default();
        let input = NetworkInput {
            x: &x,
            timesteps: &vec![500.0; items],
            conds: &conds,
            control: None,
            hooks: &hooks,
        };
        let times = time(&device, *batch as u64, || {
            Ok(DiffusionNetwork::forward(&net, &input)?)
        })?;
        report(table, &device, row, times);
    }
    Ok(())
}

fn sd15(table: &mut Table) -> Result<()> {
    let row = |what, limit, reference, memory| Row {
        what,
        limit,
        reference,
        memory,
    };
    let sizes = [
        (
            1,
            64,
            row(
                "SD1.5 512x512, batch 1, a step with guidance",
                4.5,
                "40.2 ms; compiled 9.1",
                Some(1.8),
            ),
        ),
        (
            4,
            64,
            row(
                "SD1.5 512x512, batch 4, a step with guidance",
                14.0,
                "40.9 ms",
                None,
            ),
        ),
    ];
    unet(table, "sd15", &sizes)
}

fn sdxl(table: &mut Table) -> Result<()> {
    let row = Row {
        what: "SDXL 1024x1024, batch 1, a step with guidance",
        limit: 30.0,
        reference: "75.6 ms; compiled 50.3",
        memory: Some(5.2),
    };
    unet(table, "sdxl", &[(1, 128, row)])
}

fn flux(table: &mut Table) -> Result<()> {
    let device = Device::cuda(0)?;
    device.reset_peak();
    let config = flux_config(19, 38);
    let layout = Layout::of(|weights| FluxNetwork::new(weights, &config))?;
    let items = layout.items().iter();
    let items = items.map(|(key, shape)| (key.clone(), shape.clone()));
    let weights = weights(items, Dtype::Bf16)?;
    let store = WeightStore::from_stored("made up", weights, device.clone());
    let net = store.build(FluxNetwork::WHAT, |weights| {
        FluxNetwork::new(weights, &config)
    })?;
    place(&store, &device)?;
    device.reset_peak();
    let mut conds = CallConds::default();
    let tokens = tensor(&[1, 256, 4096]);
    conds.0.insert("c_crossattn", CondValue::Regular(tokens));
    conds.0.insert("y", CondValue::Regular(tensor(&[1, 768])));
    conds.0.insert("guidance", CondValue::Regular(tensor(&[1])));
    let x = tensor(&[1, 16, 128, 128]);
    let input = NetworkInput {
        x: &x,
        timesteps: &[0.5],
        conds: &conds,
        control: None,
        hooks: &Hooks::default(),
    };
    let times = time(&device, 1, || {
        DiffusionNetwork::forward(&net, &input).context("a pass")
    })?;
    let row = Row {
        what: "Flux-dev bf16 1024x1024, a step",
        limit: 130.0,
        reference: "160.9 ms",
        memory: Some(22.7),
    };
    report(table, &device, &row, times);
    Ok(())
}

fn vae(table: &mut Table) -> Result<()> {
    let device = Device::cuda(0)?;
    let prefix = "first_stage_model.";
    let store = listed("sd15", prefix, Dtype::Bf16, &device)?;
    let net = KlVae::new(&store)?;
    place(&store, &device)?;
    for (what, side, limit, reference) in [
        ("VAE decode bf16 512x512", 64, 8.0, "22.1 ms"),
        (
            "VAE decode bf16 1024x1024",
            128,
            25.0,
            "89.6 ms; compiled 34.9",
        ),
    ] {
        device.reset_peak();
        let latent = tensor(&[1, 4, side, side]);
        let times = time(&device, 100 + side as u64, || {
            Ok(net.decode(&latent, &|| Ok(()))?)
        })?;
        let row = Row {
            what,
            limit,
            reference,
            memory: None,
        };
        report(table, &device, &row, times);
    }
    Ok(())
}
