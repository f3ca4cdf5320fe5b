//! LTX-Video: its transformer, and from conditioning to a prediction.

use anyhow::{Context, Result};
use fresco_models::denoise::{CallConds, Cond, CondValue, EncodeArgs, NetworkInput};
use fresco_models::ltxv::{LtxvConfig, LtxvNetwork};
use fresco_models::vae::{Autoencoder, AutoencoderConfig, PixelNormConfig, PixelNormVae};
use fresco_models::{DiffusionNetwork, ModelError};
use fresco_tensor::Device;

use fresco_models::vae::VaeConfig;

use super::{Kind, pass};
use crate::golden::Golden;
use crate::hooks;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::diffusion(
        "LTX-Video 0.9",
        "LTX-Video, from conditioning",
        from_conditioning,
    )
    .with(|golden| golden.has("sigma")),
    Kind::autoencoder(
        VaeConfig::is::<PixelNormConfig>,
        "autoencoder of LTX-Video",
        vae,
    )
    .with(|golden| golden.has("encoded_mean")),
    Kind::diffusion("LTX-Video 0.9", "LTX-Video", network),
];

fn config(golden: &Golden, device: &Device) -> Result<LtxvConfig> {
    Ok(LtxvConfig {
        heads: golden.need("num_attention_heads")?,
        ..LtxvConfig::detect(&*golden.store(device)?)?
    })
}

fn network(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = config(golden, device)?;
    let net: LtxvNetwork = pass::network(golden, device, &config)?;
    let (x, context) = (golden.tensor("x")?, golden.tensor("context")?);
    let (levels, plain) = (golden.values("t")?, hooks::of::<LtxvNetwork>());
    let conds = |more: [(&'static str, bool); 2]| -> Result<CallConds> {
        let mut conds = pass::conds([("c_crossattn", Some(context.clone()))]);
        for (name, there) in more {
            let from = if name == "attention_mask" {
                "mask"
            } else {
                name
            };
            if there {
                let value = CondValue::Regular(golden.tensor(from)?);
                conds.0.insert(name, value);
            }
        }
        Ok(conds)
    };
    let none = conds([("attention_mask", false), ("keyframe_idxs", false)])?;
    report.check("out", &net.pass(&x, &levels, &none, &plain)?)?;
    let masked = conds([("attention_mask", true), ("keyframe_idxs", false)])?;
    report.check("out_mask", &net.pass(&x, &levels, &masked, &plain)?)?;
    let tokens = golden.values("t_tokens")?;
    report.check("out_t_tokens", &net.pass(&x, &tokens, &masked, &plain)?)?;
    let keyed = conds([("attention_mask", true), ("keyframe_idxs", true)])?;
    report.check("out_keyframes", &net.pass(&x, &levels, &keyed, &plain)?)?;
    let causal = LtxvConfig {
        causal: true,
        ..config
    };
    let net: LtxvNetwork = pass::network(golden, device, &causal)?;
    let found = net.pass(&x, &levels, &none, &plain)?;
    report.check("out_causal_positions", &found)
}

fn from_conditioning(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let config = config(golden, device)?;
    let net: LtxvNetwork = pass::network(golden, device, &config)?;
    let (x, sampling) = (golden.tensor("x")?, LtxvNetwork::facts(&config).sampling);
    let sigma = *golden.values("sigma")?.first().context("sigma")?;
    let mut plain = Cond::new(golden.tensor("context")?);
    let mask = golden.tensor("mask")?;
    plain.tensors.insert("attention_mask".into(), mask);
    let mut full = plain.clone();
    let rate = golden.number_in_words(&["frame_rate"])?;
    full.numbers.insert("frame_rate".into(), rate);
    let known = golden.tensor("denoise_mask")?;
    for (name, cond, known) in [
        ("denoised", full, Some(&known)),
        ("denoised_plain", plain, None),
    ] {
        let args = EncodeArgs {
            cond: &cond,
            noise: &x,
            latent: None,
            denoise_mask: known,
            width: 0.0,
            height: 0.0,
            prompt_type: "positive",
        };
        let conds = CallConds(LtxvNetwork::encode(&config, &golden.name, &args)?);
        let out = net.forward(&NetworkInput {
            x: &x,
            timesteps: &vec![sampling.timestep(sigma); x.dim(0)?],
            conds: &conds,
            control: None,
            hooks: &hooks::of::<LtxvNetwork>(),
        })?;
        report.check(name, &sampling.denoised(sigma, &out, &x)?)?;
    }
    Ok(())
}

fn go() -> Result<(), ModelError> {
    Ok(())
}

/// The autoencoder, without what is measured and without noise.
fn vae(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let mode = golden.config()["decoder"]["spatial_padding_mode"].as_str();
    let config = PixelNormConfig {
        mirrored: mode == Some("reflect"),
        ..PixelNormConfig::detect(&store)?
    };
    config.verify(&store)?;
    let net = PixelNormVae::with(&store, &config)?;
    let decoded = net.decode_plain(&golden.tensor("z")?, None, &go)?;
    report.check("decoded", &decoded)?;
    let encoded = net.encode(&golden.tensor("pixels")?, &go)?;
    report.check("encoded_mean", &encoded)
}
