//! The products of SD1.5 at 512x512 on this machine, against the best library measured (`docs/measurements-history.md`)
//! and against what the vector units can do at most.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::Result;
use fresco_tensor::cpu::{
    isa::{self, Isa},
    peak::{self, Peak},
};
use fresco_tensor::nn::{After, Conv2d, Linear, Padding};
use fresco_tensor::{Device, Dtype, Stored, Tensor};

use crate::{Measurement, attention, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[
    ("peak", peaks),
    ("products", products),
    ("convolutions", convolutions),
    ("vectors", vectors),
    ("small", small),
    ("pack", pack),
    ("attention", attention::attentions),
    ("norms", attention::norms),
];

/// Fewest milliseconds of many runs: the machine has other work.
pub(crate) fn fastest(mut f: impl FnMut()) -> f64 {
    f();
    let begun = Instant::now();
    let mut best = f64::MAX;
    let mut runs = 0;
    while runs < 5 || (begun.elapsed().as_secs_f64() < 1.5 && runs < 100) {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64() * 1000.0);
        runs += 1;
    }
    best
}

fn path() -> &'static str {
    match isa::isa() {
        _ if isa::tiles() => "tiles",
        Isa::Avx512 => "AVX-512",
        Isa::Avx2 => "AVX2",
        Isa::Neon => "NEON",
        Isa::Portable => "portable",
    }
}

pub(crate) fn tensor(shape: &[usize]) -> Tensor {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    Tensor::from_fn(shape, |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    })
    .expect("the shapes of the bench fit")
}

fn weight(shape: &[usize]) -> Result<Stored> {
    Ok(Stored::from_f32(&tensor(shape), Dtype::F16)?)
}

/// Of all cores.
fn ceiling() -> Peak {
    static CEILING: OnceLock<Peak> = OnceLock::new();
    *CEILING.get_or_init(peak::peak)
}

pub(crate) fn report(
    table: &mut Table,
    what: &str,
    flops: f64,
    ms: f64,
    target: Option<f64>,
    reference: &'static str,
) {
    let rate = flops / ms / 1e6;
    let share = |peak: f64| 100.0 * rate / peak;
    let mut shares = format!("{:.0} % of the f32 peak", share(ceiling().vectors));
    if let Some(tiles) = ceiling().tiles.filter(|_| isa::tiles()) {
        shares = format!("{shares}, {:.0} % of the tiles'", share(tiles));
    }
    let what = format!("{what} ({}, {rate:.0} GFLOP/s, {shares})", path());
    table.row(what, ms, "ms", target, reference);
}

fn peaks(table: &mut Table) -> Result<()> {
    let peak = ceiling();
    table.row("f32 peak of vectors", peak.vectors, "GFLOP/s", None, "");
    if let Some(tiles) = peak.tiles {
        table.row("f32 peak of matrix tiles", tiles, "GFLOP/s", None, "");
    }
    Ok(())
}

fn linear(table: &mut Table, m: usize, k: usize, n: usize, target: Option<f64>) -> Result<()> {
    let layer = Linear::new(&weight(&[n, k])?, None, &Device::cpu())?;
    let x = tensor(&[m, k]);
    let ms = fastest(|| drop(black_box(layer.forward(&x).expect("the shapes fit"))));
    let flops = 2.0 * (m * k * n) as f64;
    report(
        table,
        &format!("product {m}x{k}x{n}"),
        flops,
        ms,
        target,
        "",
    );
    Ok(())
}

fn products(table: &mut Table) -> Result<()> {
    linear(table, 4096, 320, 2560, Some(49.5))?;
    linear(table, 1024, 1280, 1280, Some(17.2))?;
    linear(table, 8192, 320, 320, Some(7.4))?;
    linear(table, 8192, 1280, 320, None)?;
    linear(table, 2048, 640, 5120, None)?;
    linear(table, 2048, 2560, 640, None)?;
    linear(table, 512, 1280, 10240, None)?;
    linear(table, 512, 5120, 1280, None)?;
    linear(table, 154, 768, 320, None)?;
    let layer = Linear::new(&weight(&[2560, 320])?, None, &Device::cpu())?;
    let x = tensor(&[8192, 320]);
    let ms = fastest(|| drop(black_box(layer.geglu(&x).expect("the shapes fit"))));
    report(
        table,
        "GEGLU 8192x320x2560",
        2.0 * 8192.0 * 320.0 * 2560.0,
        ms,
        None,
        "",
    );
    Ok(())
}

/// Batch, channels in, channels out, size, kernel.
fn conv(
    table: &mut Table,
    b: usize,
    i: usize,
    o: usize,
    size: usize,
    kernel: usize,
    target: Option<f64>,
) -> Result<()> {
    let layer = Conv2d::new(
        &weight(&[o, i, kernel, kernel])?,
        None,
        1,
        Padding::Same(kernel / 2),
        &Device::cpu(),
    )?;
    let x = tensor(&[b, size, size, i]);
    let ms = fastest(|| drop(black_box(layer.forward(&x).expect("the shapes fit"))));
    let flops = 2.0 * (b * size * size * i * o * kernel * kernel) as f64;
    let what = format!("conv {kernel}x{kernel} {i} to {o}, {size}x{size}, batch {b}");
    report(table, &what, flops, ms, target, "");
    Ok(())
}

/// The largest shapes once more, as machines without matrix tiles compute them.
fn vectors(table: &mut Table) -> Result<()> {
    isa::allow_tiles(false);
    let done = conv(table, 2, 960, 320, 64, 3, None)
        .and_then(|()| conv(table, 2, 1920, 640, 32, 3, None))
        .and_then(|()| conv(table, 2, 2560, 1280, 16, 3, None))
        .and_then(|()| linear(table, 4096, 320, 2560, Some(49.5)))
        .and_then(|()| linear(table, 2048, 640, 5120, None));
    isa::allow_tiles(true);
    done
}

fn convolutions(table: &mut Table) -> Result<()> {
    conv(table, 2, 320, 320, 64, 3, Some(34.3))?;
    conv(table, 2, 640, 640, 32, 3, Some(39.3))?;
    conv(table, 2, 1280, 1280, 8, 3, Some(34.5))?;
    conv(table, 1, 128, 128, 256, 3, Some(43.4))?;
    conv(table, 2, 320, 320, 64, 1, Some(7.4))?;
    // The five largest of SD1.5 at 512x512 with guidance.
    conv(table, 2, 960, 320, 64, 3, None)?;
    conv(table, 2, 1920, 640, 32, 3, None)?;
    conv(table, 2, 2560, 1280, 16, 3, None)?;
    conv(table, 2, 640, 320, 64, 3, None)?;
    conv(table, 2, 1280, 640, 32, 3, None)?;
    // Of the decoder.
    conv(table, 1, 512, 512, 64, 3, None)?;
    conv(table, 1, 256, 256, 256, 3, None)?;
    conv(table, 1, 128, 128, 512, 3, None)?;
    conv(table, 2, 4, 320, 64, 3, None)?;
    conv(table, 1, 128, 3, 512, 3, None)?;
    let layer = Conv2d::new(
        &weight(&[640, 640, 3, 3])?,
        None,
        1,
        Padding::Same(1),
        &Device::cpu(),
    )?;
    let x = tensor(&[2, 32, 32, 640]);
    let ms = fastest(|| {
        drop(black_box(
            layer
                .upsampled(&x, (64, 64), After::default())
                .expect("the shapes fit"),
        ));
    });
    let flops = 2.0 * 8192.0 * 640.0 * 640.0 * 9.0;
    report(
        table,
        "conv 3x3 640, 32x32 enlarged to 64x64, batch 2",
        flops,
        ms,
        None,
        "",
    );
    let layer = Conv2d::new(
        &weight(&[320, 320, 3, 3])?,
        None,
        2,
        Padding::Same(1),
        &Device::cpu(),
    )?;
    let x = tensor(&[2, 64, 64, 320]);
    let ms = fastest(|| drop(black_box(layer.forward(&x).expect("the shapes fit"))));
    report(
        table,
        "conv 3x3 320, 64x64 stride 2, batch 2",
        2.0 * 2048.0 * 320.0 * 320.0 * 9.0,
        ms,
        None,
        "",
    );
    Ok(())
}

/// Few rows: the weights' way from memory is what counts.
fn small(table: &mut Table) -> Result<()> {
    for (m, k, n) in [
        (2, 320, 1280),
        (2, 1280, 1280),
        (128, 1280, 1280),
        (128, 5120, 1280),
    ] {
        // More weights than the caches hold.
        let stored = weight(&[n, k])?;
        let layers: Vec<Linear> = (0..(200 << 20) / (n * k * 2))
            .map(|_| Linear::new(&stored, None, &Device::cpu()))
            .collect::<Result<_, _>>()?;
        let x = tensor(&[m, k]);
        let ms = fastest(|| {
            for layer in &layers {
                drop(black_box(layer.forward(&x).expect("the shapes fit")));
            }
        });
        let bytes: u64 = layers.iter().map(Linear::bytes).sum();
        let rate = bytes as f64 / ms / 1e6;
        let ms = ms / layers.len() as f64;
        table.row(
            format!("product {m}x{k}x{n}, weights from memory ({rate:.1} GB/s)"),
            ms,
            "ms",
            None,
            "",
        );
    }
    Ok(())
}

fn pack(table: &mut Table) -> Result<()> {
    let linear = weight(&[1280, 10240])?;
    let kernels = weight(&[1280, 1280, 3, 3])?;
    let ms = fastest(|| drop(black_box(Linear::new(&linear, None, &Device::cpu()))));
    let of_linear = ms / linear.bytes().len() as f64;
    let ms = fastest(|| {
        drop(black_box(Conv2d::new(
            &kernels,
            None,
            1,
            Padding::Same(1),
            &Device::cpu(),
        )));
    });
    let of_kernels = ms / kernels.bytes().len() as f64;
    // A checkpoint of SD1.5 is 2,132 MB, about half of it convolutions.
    let whole = f64::midpoint(of_linear, of_kernels) * 2.132e6;
    table.row(
        "packing an SD1.5 checkpoint in f16",
        whole,
        "s",
        Some(1.5),
        "",
    );
    Ok(())
}
