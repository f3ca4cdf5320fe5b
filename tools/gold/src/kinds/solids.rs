//! Networks that make solids of pictures, and their autoencoder.

use anyhow::{Context, Result};
use fresco_models::ModelError;
use fresco_models::denoise::CondValue;
use fresco_models::hunyuan3d::{
    Hunyuan3d21Config, Hunyuan3d21Network, Hunyuan3dConfig, Hunyuan3dNetwork,
};
use fresco_models::vae::{AutoencoderConfig, ShapeVaeConfig};
use fresco_tensor::{Device, Tensor};

use super::{Kind, pass};
use crate::golden::Golden;
use crate::report::Report;
use fresco_models::vae::VaeConfig;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion("Hunyuan3D 2", "Hunyuan3D 2", second)
        .with(|golden| golden.has_key("latent_in.weight")),
    Kind::diffusion("Hunyuan3D 2", "Hunyuan3D 2.1", later),
    Kind::autoencoder(
        VaeConfig::is::<ShapeVaeConfig>,
        "autoencoder of solids",
        shape,
    ),
];

fn second(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = Hunyuan3dConfig {
        heads: golden.need("num_heads")?,
        ..Hunyuan3dConfig::detect(&store)?
    };
    let net: Hunyuan3dNetwork = pass::network(golden, device, &config)?;
    let mut conds = pass::conds([("c_crossattn", Some(golden.tensor("context")?))]);
    let (x, t) = (golden.tensor("x")?, golden.values("t")?);
    if golden.has("out_no_guidance") {
        let out = pass::forward(&net, &x, &t, &conds)?;
        report.check("out_no_guidance", &out)?;
    }
    conds.0.insert("guidance", CondValue::Constant(5.0));
    report.check("out", &pass::forward(&net, &x, &t, &conds)?)
}

/// The reference exchanges the halves of the contexts and of the results of a batch, which is nothing where both halves are
/// the same latent; where they are not, it is as if those of the latent were.
fn later(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = Hunyuan3d21Config {
        heads: golden.need("num_heads")?,
        asked: golden.need("moe_top_k")?,
        ..Hunyuan3d21Config::detect(&store)?
    };
    let net: Hunyuan3d21Network = pass::network(golden, device, &config)?;
    let conds = pass::conds([("c_crossattn", Some(golden.tensor("context")?))]);
    let x = golden.tensor("x")?;
    let half = x.dim(0)? / 2;
    let x = Tensor::cat(&[&x.narrow(0, half, half)?, &x.narrow(0, 0, half)?], 0)?;
    let t = golden.values("t")?;
    report.check("out", &pass::forward(&net, &x, &t, &conds)?)
}

fn go() -> Result<(), ModelError> {
    Ok(())
}

fn shape(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let config = ShapeVaeConfig {
        heads: golden.need("heads")?,
        ..ShapeVaeConfig::detect(&store)?
    };
    config.verify(&store)?;
    let net = config.open(&store)?;
    let side = golden.tensor("grid")?.dim(1)?;
    let cells = side.checked_sub(1).context("grid is empty")?;
    let field = net.field(&golden.tensor("z")?, cells, 100, &go)?;
    report.check("grid", &field)
}
