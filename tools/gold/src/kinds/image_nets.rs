//! Autoencoders of pictures.

use anyhow::Result;
use fresco_models::ModelError;
use fresco_models::taesd::Taesd;
use fresco_models::vae::{Autoencoder, KlConfig, KlVae};
use fresco_tensor::{Device, Stored};

use fresco_models::vae::VaeConfig;

use super::Kind;
use crate::golden::{self, Golden};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::own(
        "small autoencoder",
        |golden| golden.any_key("taesd_decoder."),
        taesd,
    ),
    Kind::autoencoder(VaeConfig::is::<KlConfig>, "autoencoder", kl)
        .with(|golden| golden.has("decoded")),
    Kind::autoencoder(
        VaeConfig::is::<KlConfig>,
        "autoencoder that shuffles cells",
        shuffled,
    )
    .with(|golden| golden.has("moments")),
    Kind::autoencoder(
        VaeConfig::is::<KlConfig>,
        "autoencoder with packed latents",
        packed,
    )
    .with(|golden| golden.has_key("bn.running_mean")),
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
