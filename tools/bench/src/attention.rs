//! Attention and normalisation at the sizes of SD1.5 at 512x512, against the best library measured.

use std::hint::black_box;

use anyhow::Result;
use fresco_tensor::nn::{self, Act, GroupNorm, LayerNorm, Mask};
use fresco_tensor::{Stored, Tensor};

use crate::kernels::{fastest, report, tensor};
use crate::table::Table;

/// Batch, heads, queries, keys, channels of a head, what is promised.
type Shape = (usize, usize, usize, usize, usize, Option<f64>);

const SHAPES: &[Shape] = &[
    (2, 8, 4096, 4096, 40, Some(332.0)),
    (2, 8, 4096, 77, 40, Some(7.8)),
    (2, 8, 1024, 1024, 80, None),
    (2, 8, 1024, 77, 80, None),
    (2, 8, 256, 256, 160, None),
    (2, 8, 64, 64, 160, None),
    (2, 10, 1024, 1024, 64, None),
    (1, 1, 4096, 4096, 512, None),
    (1, 12, 77, 77, 64, None),
];

pub(crate) fn attentions(table: &mut Table) -> Result<()> {
    for &(b, heads, queries, keys, d, target) in SHAPES {
        let q = tensor(&[b, queries, heads * d]);
        let k = tensor(&[b, keys, heads * d]);
        let run = || nn::attention(&q, &k, &k, heads, Mask::None, None);
        let ms = fastest(|| drop(black_box(run().expect("the shapes fit"))));
        report(
            table,
            &format!("attention {b}x{heads}x{queries}x{keys}, d {d}"),
            4.0 * (b * heads * queries * keys * d) as f64,
            ms,
            target,
            "",
        );
    }
    Ok(())
}

pub(crate) fn norms(table: &mut Table) -> Result<()> {
    for (b, size, channels, target) in [(2, 64, 320, Some(3.3)), (1, 512, 128, None)] {
        let ones = Stored::from(&Tensor::ones([channels])?);
        let norm = GroupNorm::new(&ones, &ones, 32, 1e-5)?;
        let x = tensor(&[b, size, size, channels]);
        let ms = fastest(|| {
            drop(black_box(
                norm.forward(&x, Act::Silu).expect("the shapes fit"),
            ));
        });
        let what = format!("group norm and SiLU {channels}, {size}x{size}, b{b}");
        table.row(what, ms, "ms", target, "");
    }
    let ones = Stored::from(&Tensor::ones([320])?);
    let norm = LayerNorm::new(Some(&ones), Some(&ones), 1e-5)?;
    let x = tensor(&[2, 4096, 320]);
    let ms = fastest(|| drop(black_box(norm.forward(&x).expect("the shapes fit"))));
    table.row("layer norm 2x4096x320", ms, "ms", None, "");
    let x = x.reshape([2, 64, 64, 320])?;
    let ms = fastest(|| drop(black_box(x.nhwc_to_nchw().expect("the shape fits"))));
    table.row("NHWC to NCHW 320, 64x64, b2", ms, "ms", None, "");
    let ms = fastest(|| {
        drop(black_box(
            nn::concat_channels(&[&x, &x]).expect("the shapes fit"),
        ));
    });
    table.row("join 320 and 320 channels, 64x64, b2", ms, "ms", None, "");
    let ms = fastest(|| drop(black_box(nn::gelu(&x))));
    table.row("GELU 2x4096x320", ms, "ms", None, "");
    Ok(())
}
