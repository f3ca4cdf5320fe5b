//! Krea 2.

use anyhow::{Context, Result};
use fresco_models::krea2::{KreaConfig, KreaNetwork};
use fresco_tensor::{Device, Tensor};

use super::{Kind, pass};
use crate::golden::{Golden, sizes};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[Kind::diffusion("Krea 2", "Krea 2", run)];

/// A picture's tokens as a video of one frame, (b, c, 1, 2 h, 2 w).
fn latent(tokens: &Tensor, h: usize, w: usize) -> Result<Tensor> {
    let [b, _, width] = tokens.dims3()?;
    let c = width / 4;
    let cells = tokens
        .reshape([b, h, w, c, 2, 2])?
        .permute(&[0, 3, 1, 4, 2, 5])?;
    Ok(cells.reshape([b, c, 1, 2 * h, 2 * w])?)
}

fn tokens(latent: &Tensor, h: usize, w: usize) -> Result<Tensor> {
    let (b, c) = (latent.dim(0)?, latent.dim(1)?);
    let cells = latent
        .reshape([b, c, h, 2, w, 2])?
        .permute(&[0, 2, 4, 1, 3, 5])?;
    Ok(cells.reshape([b, h * w, 4 * c])?)
}

fn run(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = KreaConfig {
        axes: golden.numbers("axes_dims_rope").context("axes_dims_rope")?,
        theta: golden.float("rope_theta").context("rope_theta")?,
        eps: golden.float("norm_eps").context("norm_eps")? as f32,
        ..KreaConfig::detect(&*golden.store(device)?)?
    };
    let net: KreaNetwork = pass::network(golden, device, &config)?;
    let cases = golden.about["cases"].as_array().context("cases")?;
    for (number, case) in cases.iter().enumerate() {
        let grid = sizes(&case["grid"]).context("grid")?;
        let &[h, w] = grid.as_slice() else {
            anyhow::bail!("{grid:?} is no grid");
        };
        let of = |name: &str| golden.tensor(&format!("{number}.{name}"));
        let states = of("txt")?;
        let (b, n) = (states.dim(0)?, states.dim(1)?);
        let conds = pass::conds([
            (
                "c_crossattn",
                Some(states.reshape([b, n, config.context()])?),
            ),
            ("attention_mask", golden.maybe(&format!("{number}.mask"))?),
        ]);
        let x = latent(&of("x")?, h, w)?;
        let times = of("timestep")?.into_vec();
        let out = pass::forward(&net, &x, &times, &conds)?;
        report.check(&format!("out.{number}"), &tokens(&out, h, w)?)?;
    }
    Ok(())
}
