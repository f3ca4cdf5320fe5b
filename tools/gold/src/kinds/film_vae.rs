//! Autoencoders of films, and of pictures that are frames of one.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use fresco_models::ModelError;
use fresco_models::vae::{FilmConfig, FilmVae, KlVae, VaeConfig, names};
use fresco_tensor::{Device, Stored, Tensor};

use super::Kind;
use crate::golden::{self, Golden};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::autoencoder(
        |config| matches!(config, VaeConfig::Kl(_)),
        "autoencoder of pictures that are frames",
        frames,
    )
    .with(|golden| golden.has_key("decoder.conv_out.time_mix_conv.weight")),
    Kind::autoencoder(
        |config| matches!(config, VaeConfig::Film(_)),
        "autoencoder of films",
        film,
    ),
];

fn go() -> Result<(), ModelError> {
    Ok(())
}

fn frames(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let store = golden.store(device)?;
    VaeConfig::detect(&store)?.verify(&store)?;
    let made = KlVae::new(&store)?.decode(&golden.tensor("z")?, &go)?;
    report.check("decoded", &made)
}

fn film(golden: &Golden, device: &Device, report: &mut Report<'_>) -> Result<()> {
    let mut weights: BTreeMap<String, Stored> = BTreeMap::new();
    for (key, stored) in golden.weights()? {
        let stored = match names::flattened(stored.shape()) {
            Some(shape) => stored.reshape(shape)?,
            None if key == "latent_std" => {
                // As the golden says in words.
                let value = stored.to_f32()?;
                Stored::from(&value.abs().mul_scalar(10.0).add_scalar(0.5))
            }
            None => stored,
        };
        weights.insert(key, stored);
    }
    let store = golden::store(&golden.name, weights, device);
    let config = FilmConfig::detect(&store)?.context("no autoencoder of films")?;
    config.verify(&store)?;
    let net = config.build(&store)?;
    let first = |x: &Tensor| -> Result<Tensor> { Ok(x.narrow(2, 0, 1)?) };
    let decode = |z: &Tensor| match &net {
        FilmVae::Small(net) => net.decode_plain(z, &go),
        other => other.decode(z, &go),
    };
    let encode = |pixels: &Tensor| match &net {
        FilmVae::Small(net) => net.encode_plain(pixels, &go),
        other => other.encode(pixels, &go),
    };
    for (input, out) in [("z", "decoded"), ("z1", "dec/z1"), ("z3", "dec/z3")] {
        if golden.has(out) {
            report.check(out, &decode(&golden.tensor(input)?)?)?;
        }
    }
    for out in ["decoded_1frame", "decoded_1"] {
        if golden.has(out) {
            report.check(out, &decode(&first(&golden.tensor("z")?)?)?)?;
        }
    }
    for (input, out) in [("pixels", "encoded"), ("x1", "enc/x1"), ("x5", "enc/x5")] {
        if golden.has(out) {
            report.check(out, &encode(&golden.tensor(input)?)?)?;
        }
    }
    for out in ["encoded_1frame", "encoded_1"] {
        if golden.has(out) {
            report.check(out, &encode(&first(&golden.tensor("pixels")?)?)?)?;
        }
    }
    Ok(())
}
