//! How long products take in tiles of every width, cut in every number of parts: what the costs in `tuned.rs` come from.
//!
//! `FRESCO_TUNE=1 cargo test --release -p fresco-tensor --lib tuning -- --nocapture`

use std::fmt::Write;

use super::super::plan::{FORCED, Work};
use crate::cuda::tuned::HOPPER_ONCE;
use crate::device::Device;
use crate::nn::{After, Conv2d, Linear, Padding};
use crate::{Dtype, Stored, Tensor, synthetic};

fn weight(shape: &[usize]) -> Stored {
    let plain = synthetic::value("w", shape, 0.02).unwrap();
    Stored::from_f32(&plain, Dtype::F16).unwrap()
}

/// Microseconds of a call: of all kernels by the device's clock.
fn microseconds(device: &Device, call: &dyn Fn() -> Tensor) -> f64 {
    const TIMES: usize = 10;
    call();
    device.synchronize().unwrap();
    let run = || {
        for _ in 0..TIMES {
            call();
        }
    };
    let ((), kernels) = device.profiled(run).unwrap();
    let sum: f64 = kernels.iter().map(|k| k.milliseconds).sum();
    sum * 1e3 / TIMES as f64
}

fn tune(name: &str, device: &Device, widths: &[usize], work: f64, call: &dyn Fn() -> Tensor) {
    FORCED.set(None);
    let chosen = microseconds(device, call);
    let mut line = format!(
        "{name}: chosen {chosen:.1} us {:.0} TFLOP/s;",
        work / chosen / 1e6
    );
    for &width in widths {
        for parts in [1, 2, 3, 4, 8, 12] {
            FORCED.set(Some((width, parts, Work::Loop)));
            let time = microseconds(device, call);
            let _ = write!(line, " {width}/{parts} {time:.1}");
        }
    }
    for (cost, sizes) in HOPPER_ONCE.iter().filter(|_| !name.starts_with("geglu")) {
        let width = cost.width;
        for &size in *sizes {
            FORCED.set(Some((width, 1, Work::Once(size))));
            let time = microseconds(device, call);
            let _ = write!(line, " {width}*{size} {time:.1}");
        }
    }
    FORCED.set(None);
    println!("{line}");
}

#[test]
fn tuning() {
    if std::env::var_os("FRESCO_TUNE").is_none() {
        return;
    }
    let Ok(device) = crate::gpu::open_first() else {
        return;
    };
    let device = device.computing_only_in(crate::gpu::Format::F16);
    let here = |t: Tensor| t.to(&device).unwrap();
    let input = |shape: &[usize]| here(synthetic::value("x", shape, 1.0).unwrap());
    for (m, k, n) in [
        (2, 1280, 1280),
        (154, 768, 320),
        (154, 768, 1280),
        (154, 2048, 1280),
        (128, 1280, 1280),
        (512, 1280, 1280),
        (512, 5120, 1280),
        (2048, 640, 640),
        (2048, 2560, 640),
        (2048, 1280, 1280),
        (2048, 5120, 1280),
        (8192, 320, 320),
        (8192, 1280, 320),
        (8192, 640, 640),
        (8192, 2560, 640),
        (32768, 320, 320),
        (4096, 3072, 9216),
        (512, 3072, 9216),
        (4608, 3072, 21504),
        (4608, 15360, 3072),
    ] {
        let layer = Linear::new(&weight(&[n, k]), None, &device).unwrap();
        let x = input(&[m, k]);
        let add = input(&[m, n]);
        let work = 2.0 * (m * k * n) as f64;
        let widths: &[usize] = if m * n > 3_000_000 {
            &[128, 160, 256]
        } else {
            &[64, 128, 160, 256]
        };
        tune(&format!("{m}x{k}x{n}"), &device, widths, work, &|| {
            layer.forward(&x).unwrap()
        });
        let after = After {
            add: Some(&add),
            ..After::default()
        };
        FORCED.set(None);
        let with = microseconds(&device, &|| layer.forward_with(&x, after).unwrap());
        println!("  with a residual {with:.1} us");
    }
    for (m, k, n) in [
        (2048, 640, 5120),
        (512, 1280, 10240),
        (8192, 320, 2560),
        (8192, 640, 5120),
        (2048, 1280, 10240),
    ] {
        let layer = Linear::new(&weight(&[n, k]), None, &device).unwrap();
        let x = input(&[m, k]);
        let work = 2.0 * (m * k * n) as f64;
        tune(
            &format!("geglu {m}x{k}x{n}"),
            &device,
            &[128, 160, 256],
            work,
            &|| layer.geglu(&x).unwrap(),
        );
    }
    for (b, h, c, out, stride) in [
        (2, 64, 320, 320, 1),
        (2, 64, 640, 320, 1),
        (2, 64, 320, 320, 2),
        (2, 32, 640, 640, 1),
        (2, 32, 1280, 640, 1),
        (2, 16, 1280, 1280, 1),
        (2, 16, 2560, 1280, 1),
        (2, 8, 1280, 1280, 1),
        (2, 8, 2560, 1280, 1),
        (2, 128, 320, 320, 1),
        (2, 64, 640, 640, 1),
        (2, 32, 1280, 1280, 1),
        (1, 256, 512, 512, 1),
        (1, 512, 256, 256, 1),
        (1, 1024, 128, 128, 1),
    ] {
        let layer = Conv2d::new(
            &weight(&[out, c, 3, 3]),
            None,
            stride,
            Padding::Same(1),
            &device,
        )
        .unwrap();
        let x = input(&[b, h, h, c]);
        let work = 18.0 * (b * h * h * c * out / stride / stride) as f64;
        let name = format!("conv {b}x{h}x{h}x{c}->{out} stride {stride}");
        tune(&name, &device, &[64, 128, 160, 256], work, &|| {
            layer.forward(&x).unwrap()
        });
    }
}
