//! Autoencoders of pictures.

use anyhow::Result;
use fresco_models::ModelError;
use fresco_models::taesd::Taesd;
use fresco_models::vae::{KlConfig, KlVae};
use fresco_tensor::{Device, Stored};

use super::Kind;
use crate::golden::{self, Golden};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind {
        name: "small autoencoder",
        is: |golden| golden.any_key("taesd_decoder."),
        run: taesd,
    },
    Kind {
        name: "autoencoder",
        is: |golden| {
            golden.has_key("decoder.mid.block_1.norm1.weight")
                && golden.has_key("decoder.conv_in.weight")
                && !golden.has_key("decoder.mid.block_1.time_stack.in_layers.0.weight")
                && golden.has("decoded")
        },
        run: kl,
    },
    Kind {
        name: "autoencoder that shuffles cells",
        is: |golden| {
            golden.has_key("encoder.down.0.downsample.conv.weight") && golden.has("moments")
        },
        run: shuffled,
    },
    Kind {
        name: "autoencoder with packed latents",
        is: |golden| golden.has_key("bn.running_mean") && golden.has_key("decoder.conv_in.weight"),
        run: packed,
    },
];

fn go() -> Result<(), ModelError> {
    Ok(())
}

fn kl(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    KlConfig::detect(&store)?;
    let net = KlVae::new(&store)?;
    report.check("decoded", &net.decode(&golden.tensor("z")?, &go)?)?;
    if let Some(pixels) = golden.maybe("pixels")? {
        report.check("encoded_mode", &net.encode(&pixels, &go)?)?;
    }
    Ok(())
}

fn shuffled(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let net = KlVae::new(&store)?;
    report.check("dec", &net.decode(&golden.tensor("z_in")?, &go)?)?;
    let mean = net.encode(&golden.tensor("x")?, &go)?;
    let moments = golden.tensor("moments")?;
    let expected = moments.narrow(1, 0, moments.dim(1)? / 2)?;
    report.compare("moments", &mean, &expected)
}

fn taesd(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let net = Taesd::combined(&store)?;
    report.check("decoded", &net.decode(&golden.tensor("z")?, &go)?)?;
    report.check("encoded", &net.encode(&golden.tensor("pixels")?, &go)?)
}

fn packed(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mut weights = golden.weights()?;
    // The one weight that would be negative by the rule.
    let key = "bn.running_var";
    if let Some(variance) = weights.get(key) {
        let variance = variance.to_f32()?.map(|v| 10.0 * v + 1.0);
        weights.insert(key.to_owned(), Stored::from(&variance));
    }
    let net = KlVae::new(&golden::store(&golden.name, weights, device))?;
    report.check("z", &net.encode(&golden.tensor("x")?, &go)?)?;
    report.check("dec", &net.decode(&golden.tensor("z_in")?, &go)?)
}
