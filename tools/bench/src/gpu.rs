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
use fresco_models::vae::{Autoencoder, KlVae};
use fresco_models::{DiffusionNetwork, WeightStore};
use fresco_synth::list;
use fresco_tensor::formats::{RowFormat, RowKind};
use fresco_tensor::gpu::{KernelTime, open_first};
use fresco_tensor::{Device, Dtype, Stored, Tensor, synthetic};

use crate::kernels::tensor;
use crate::transformers::flux_config;
use crate::{Measurement, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[
    ("sd15", sd15),
    ("sdxl", sdxl),
    ("flux", flux),
    ("fluxfp8", flux_fp8),
    ("fluxint8", flux_int8),
    ("flux-half", flux_half),
    ("vae", vae),
];

/// What weights are made up in: all in one format, or matrices as rows of bytes and the rest in bf16.
#[derive(Clone, Copy)]
enum Made {
    Plain(Dtype),
    Rows(RowKind),
}

impl Made {
    fn value(self, name: &str, shape: &[usize]) -> Result<Stored> {
        match (self, shape) {
            (Self::Plain(dtype), _) => Ok(synthetic::stored(name, shape, dtype)?),
            (Self::Rows(kind), &[out, columns]) if columns % 16 == 0 => {
                bytes(name, [out, columns], kind)
            }
            (Self::Rows(_), _) => Ok(synthetic::stored(name, shape, Dtype::Bf16)?),
        }
    }
}

/// Rows of bytes that use all of their range, with scales that make of them what a weight usually is.
fn bytes(name: &str, [out, columns]: [usize; 2], kind: RowKind) -> Result<Stored> {
    let format = RowFormat::new(kind, columns, 0).context("rows of bytes")?;
    let (most, dtype) = match kind {
        RowKind::Int8 => (127.0, None),
        _ => (448.0, Some(Dtype::F8E4M3)),
    };
    let values = synthetic::value(name, &[out, columns], most)?;
    let codes: Vec<u8> = match dtype {
        Some(dtype) => Stored::from_f32(&values, dtype)?.bytes().to_vec(),
        None => values.data().iter().map(|v| *v as i8 as u8).collect(),
    };
    let scale = (3.0 / columns as f32).sqrt() / most;
    let mut rows = Vec::with_capacity(out * format.row_bytes());
    for row in codes.chunks_exact(columns) {
        rows.extend_from_slice(row);
        rows.extend_from_slice(&scale.to_le_bytes());
    }
    Ok(Stored::new(Dtype::Rows(format), &[out, columns][..], rows)?)
}

/// Weights of names and shapes, those of one shape being the same.
fn weights(
    items: impl Iterator<Item = (String, Vec<usize>)>,
    made_in: Made,
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
            None => made_in.value(&name, &shape)?,
        };
        made.insert(key, value.clone());
        all.insert(name, value);
    }
    Ok(all)
}

/// A store of a part of a list of `tools/synth`.
pub(crate) fn listed(
    name: &str,
    prefix: &str,
    dtype: Dtype,
    device: &Device,
) -> Result<Arc<WeightStore>> {
    let items = list::load(name)?.into_iter().filter_map(|item| {
        let key = item.name.strip_prefix(prefix)?;
        Some((key.to_owned(), item.shape))
    });
    let weights = weights(items, Made::Plain(dtype))?;
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

/// What an H200 does in a millisecond at best: products of sixteen bits, those of bytes (which is twice as much), and bytes that are read and
/// written. As measured, not as promised.
const OPERATIONS: f64 = 790e9;
const BYTES: f64 = 4.3e9;

/// Where the time of a step goes: kernels one by one, each with the time of taking its time, and beside it the least that is possible for those that
/// tell what they do.
fn print_profile(kernels: &[KernelTime]) {
    let total: f64 = kernels.iter().map(|kernel| kernel.milliseconds).sum();
    let starts: usize = kernels.iter().map(|kernel| kernel.starts).sum();
    eprintln!("  kernels: {total:.2} ms of {starts}");
    for kernel in kernels.iter().take(24) {
        let of_bytes = ["e4m3", "e5m2", "s8"].iter();
        let bytes = of_bytes.clone().any(|name| kernel.kernel.contains(name));
        let rate = if bytes { 2.0 * OPERATIONS } else { OPERATIONS };
        let floor = (kernel.operations / rate).max(kernel.bytes / BYTES);
        let against = if floor > 0.0 {
            format!("{floor:8.3} ms {:5.1} x", kernel.milliseconds / floor)
        } else {
            " ".repeat(19)
        };
        eprintln!(
            "    {:8.3} ms {:5} x {:6.1} us | {against} | {}",
            kernel.milliseconds,
            kernel.starts,
            1e3 * kernel.milliseconds / kernel.starts as f64,
            kernel.kernel
        );
    }
}

/// Steps of a picture.
const STEPS: usize = 20;

/// Milliseconds of a step, the first time, and in the second picture of so many steps. A step is told its number.
fn time(device: &Device, key: u64, step: impl Fn(usize) -> Result<Tensor>) -> Result<(f64, f64)> {
    let timed = |number: usize| {
        let begun = Instant::now();
        let out = device.repeated(key, || step(number))?;
        black_box(out);
        anyhow::Ok(begun.elapsed().as_secs_f64() * 1000.0)
    };
    let first = timed(0)?;
    for number in 1..STEPS {
        timed(number)?;
    }
    let (_, kernels) = device.profiled(|| step(0))?;
    print_profile(&kernels);
    let repeats = || device.gpu().map_or(0, |gpu| gpu.repeats);
    let before = repeats();
    let mut all: Vec<f64> = (0..STEPS).map(timed).collect::<Result<_>>()?;
    eprintln!("  {} of {STEPS} as graphs", repeats() - before);
    all.sort_by(f64::total_cmp);
    Ok((first, all[all.len() / 2]))
}

/// What a measurement is called, its limit, and what the reference takes.
struct Row {
    what: &'static str,
    limit: Option<f64>,
    reference: &'static str,
    /// GiB that the reference takes.
    memory: Option<f64>,
}

fn report(table: &mut Table, device: &Device, row: &Row, (first, each): (f64, f64)) {
    table.row(row.what, each, "ms", row.limit, row.reference);
    table.row(format!("{}: the first", row.what), first, "ms", None, "");
    let peak = device.peak() as f64 / f64::from(1 << 30);
    let limit = row.memory.map(|gib| 0.9 * gib);
    table.row(format!("{}: memory", row.what), peak, "GiB", limit, "");
}

fn unet(table: &mut Table, list: &str, sizes: &[(usize, usize, Row)]) -> Result<()> {
    let device = open_first()?;
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
        // As guidance asks for it: the same latents with the prompt and with the negative one.
        let latents = tensor(&[*batch, 4, *side, *side]);
        let x = Tensor::cat(&[&latents, &latents], 0)?;
        let hooks = Hooks::default();
        let times = time(&device, *batch as u64, |number| {
            let input = NetworkInput {
                x: &x,
                timesteps: &vec![999.0 - 50.0 * number as f32; items],
                conds: &conds,
                control: None,
                hooks: &hooks,
            };
            Ok(DiffusionNetwork::forward(&net, &input)?)
        })?;
        report(table, &device, row, times);
    }
    Ok(())
}

fn sd15(table: &mut Table) -> Result<()> {
    let row = |what, limit, reference, memory| Row {
        what,
        limit: Some(limit),
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
        limit: Some(30.0),
        reference: "75.6 ms; compiled 50.3",
        memory: Some(5.2),
    };
    unet(table, "sdxl", &[(1, 128, row)])
}

/// Flux-dev with weights in main memory at first.
fn flux_network(device: &Device, made_in: Made) -> Result<(Arc<WeightStore>, FluxNetwork)> {
    let config = flux_config(19, 38);
    let layout = Layout::of(|weights| FluxNetwork::new(weights, &config))?;
    let items = layout.items().iter();
    let items = items.map(|(key, shape)| (key.clone(), shape.clone()));
    let weights = weights(items, made_in)?;
    let store = WeightStore::from_stored("made up", weights, device.clone());
    let net = store.build(FluxNetwork::WHAT, |weights| {
        FluxNetwork::new(weights, &config)
    })?;
    Ok((store, net))
}

/// What one step of a picture of 1024x1024 takes.
fn flux_times(device: &Device, net: &FluxNetwork, key: u64) -> Result<(f64, f64)> {
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
    time(device, key, |_| {
        DiffusionNetwork::forward(net, &input).context("a pass")
    })
}

fn flux(table: &mut Table) -> Result<()> {
    let row = Row {
        what: "Flux-dev bf16 1024x1024, a step",
        limit: Some(130.0),
        reference: "160.9 ms",
        memory: Some(22.7),
    };
    flux_in(table, Made::Plain(Dtype::Bf16), &row)
}

fn flux_fp8(table: &mut Table) -> Result<()> {
    let row = Row {
        what: "Flux-dev fp8 1024x1024, a step",
        limit: Some(90.0),
        reference: "",
        memory: None,
    };
    flux_in(table, Made::Rows(RowKind::F8E4M3), &row)
}

fn flux_int8(table: &mut Table) -> Result<()> {
    let row = Row {
        what: "Flux-dev int8 1024x1024, a step",
        limit: None,
        reference: "",
        memory: None,
    };
    flux_in(table, Made::Rows(RowKind::Int8), &row)
}

fn flux_in(table: &mut Table, made_in: Made, row: &Row) -> Result<()> {
    let device = open_first()?;
    device.reset_peak();
    let (store, net) = flux_network(&device, made_in)?;
    place(&store, &device)?;
    device.reset_peak();
    let times = flux_times(&device, &net, 1)?;
    report(table, &device, row, times);
    Ok(())
}

/// The same with every other layer in main memory, so that half of the weights come over in each step. What the link allows
/// is measured beside it.
fn flux_half(table: &mut Table) -> Result<()> {
    let device = open_first()?;
    let speed = device.measured_link()?.unwrap_or(0.0);
    table.row("main memory to the GPU", speed / 1e9, "GB/s", None, "");
    let (store, net) = flux_network(&device, Made::Plain(Dtype::Bf16))?;
    let (mut there, mut here) = (0, 0);
    for unit in store.units() {
        if there <= here {
            there += unit.bytes;
            store.move_unit(&unit.name, &device)?;
        } else {
            here += unit.bytes;
        }
    }
    store.finish_moves()?;
    store.group().set_ahead(2);
    device.reset_peak();
    let what = "Flux-dev bf16 1024x1024, half of its weights in main memory";
    let (first, half) = flux_times(&device, &net, 2)?;
    eprintln!("  {:?}", store.group());
    table.row(format!("{what}: the first step"), first, "ms", None, "");
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    table.row(
        format!("{what}: in main memory"),
        gib(here),
        "GiB",
        None,
        "",
    );
    let peak = gib(device.peak());
    table.row(format!("{what}: memory of the GPU"), peak, "GiB", None, "");
    store.group().drop_ahead();
    place(&store, &device)?;
    let (_, resident) = flux_times(&device, &net, 3)?;
    table.row("the same, all on the GPU", resident, "ms", None, "");
    table.row(what, half, "ms", Some(resident / 0.7), "");
    let share = 100.0 * resident / half;
    table.row(
        "share of the speed with all on the GPU",
        share,
        "%",
        None,
        "",
    );
    // Its bytes over the link, were they not made shorter.
    let plain = here as f64 / speed * 1000.0;
    table.row("the plain copies alone", plain, "ms", None, "");
    Ok(())
}

fn vae(table: &mut Table) -> Result<()> {
    let device = open_first()?;
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
        let times = time(&device, 100 + side as u64, |_| {
            Ok(net.decode(&latent, &|| Ok(()))?)
        })?;
        let row = Row {
            what,
            limit: Some(limit),
            reference,
            memory: None,
        };
        report(table, &device, &row, times);
    }
    Ok(())
}
