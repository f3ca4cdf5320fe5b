//! Autoencoders of films, and of pictures that are frames of one.

use std::collections::BTreeMap;

use anyhow::Result;
use fresco_models::ModelError;
use fresco_models::taehv::{Taehv, TaehvConfig};
use fresco_models::vae::{
    Autoencoder, KlConfig, KlVae, ReplicatedConfig, StackedConfig, VaeConfig, WaveletConfig, names,
};
use fresco_tensor::{Device, Stored, Tensor};

use super::Kind;
use crate::golden::{self, Golden};
use crate::report::Report;

pub(super) static KINDS: &[Kind] = &[
    Kind::autoencoder(
        VaeConfig::is::<KlConfig>,
        "autoencoder of pictures that are frames",
        frames,
    )
    .with(|golden| golden.has_key("decoder.conv_out.time_mix_conv.weight")),
    Kind::autoencoder(is_film, "autoencoder of films", film),
];

fn is_film(config: &VaeConfig) -> bool {
    config.is::<ReplicatedConfig>()
        || config.is::<WaveletConfig>()
        || config.is::<StackedConfig>()
        || config.is::<TaehvConfig>()
}

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
    let config = VaeConfig::detect(&store)?;
    config.verify(&store)?;
    let vae = config.build(&store)?;
    let small = config.get().map(|config| Taehv::new(&store, config));
    let small = small.transpose()?;
    let first = |x: &Tensor| -> Result<Tensor> { Ok(x.narrow(2, 0, 1)?) };
    let decode = |z: &Tensor| match &small {
        Some(small) => small.decode_plain(z, &go),
        None => vae.network().decode(z, &go),
    };
    let encode = |pixels: &Tensor| match &small {
        Some(small) => small.encode_plain(pixels, &go),
        None => vae.network().encode(pixels, &go),
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
