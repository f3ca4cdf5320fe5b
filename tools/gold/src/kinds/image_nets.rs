//! Autoencoders of pictures.

use anyhow::Result;
use fresco_models::ModelError;
use fresco_models::taesd::Taesd;
use fresco_models::vae::{KlConfig, KlVae};
use fresco_tensor::Device;

use super::Kind;
use crate::golden::Golden;
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind {
        name: "small autoencoder",
        is: |golden| golden.any_key("taesd_decoder."),
        run: taesd,
    },
    Kind {
        name: "autoencoder",
        is: |golden| golden.has_key("decoder.mid.block_1.norm1.weight") && golden.has("decoded"),
        run: kl,
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

fn taesd(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    let net = Taesd::combined(&store)?;
    report.check("decoded", &net.decode(&golden.tensor("z")?, &go)?)?;
    report.check("encoded", &net.encode(&golden.tensor("pixels")?, &go)?)
}
