//! What a weight file is: which family, where its parts are, how it is sampled. Only names and shapes are looked at, and
//! for SD2 one small tensor.

mod diffusers;
mod families;

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use crate::error::{ModelError, Result};
use crate::latent_format::{self, LatentFormat};
use crate::model_sampling::Prediction;
use crate::preview::PreviewHints;
use crate::store::{Origin, Store};
use crate::text::Stack;
use crate::unet::UNetConfig;

pub(crate) use diffusers::unet_keys as diffusers_unet_keys;
pub use families::what_it_is;

/// Families of UNets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Sd1,
    Sd2,
    Sdxl,
    SdxlRefiner,
}

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sd1 => "SD1.x",
            Self::Sd2 => "SD2.x",
            Self::Sdxl => "SDXL",
            Self::SdxlRefiner => "SDXL refiner",
        }
    }

    /// The text encoders that checkpoints of the family bring.
    pub fn stack(self) -> Stack {
        match self {
            Self::Sd1 => Stack::Sd1,
            Self::Sd2 => Stack::Sd2,
            Self::Sdxl => Stack::Sdxl,
            Self::SdxlRefiner => Stack::SdxlRefiner,
        }
    }

    /// How much more memory a pass takes than one of SD1 for the same latent.
    pub fn memory_factor(self) -> f64 {
        match self {
            Self::Sdxl => 0.8,
            Self::Sd1 | Self::Sd2 | Self::SdxlRefiner => 1.0,
        }
    }
}

/// What a UNet gets beside the noisy latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Plain,
    /// A mask and what is around it.
    Inpaint,
    /// The picture to change.
    InstructPix2Pix,
}

/// A recognised file with a diffusion network.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub family: Family,
    pub variant: Variant,
    pub config: UNetConfig,
    pub prediction: Prediction,
    /// Whether the schedule ends in pure noise.
    pub zero_snr: bool,
    pub latent_format: LatentFormat,
    /// The network's keys and where they are in the file.
    unet: BTreeMap<String, Origin>,
    /// The prefix of the autoencoder, if the file has one.
    pub vae_prefix: Option<&'static str>,
    /// The text encoders, if the file has any.
    pub text: Option<Stack>,
    /// How the file wants its latents shown.
    pub preview: PreviewHints,
}

impl Checkpoint {
    /// The weights of the UNet under the names of the original.
    pub fn unet_store(&self, file: &Arc<dyn WeightFile>, device: Device) -> Arc<Store> {
        Store::mapped(Arc::clone(file), self.unet.clone(), device)
    }

    /// The weights of the autoencoder, if the file has one.
    pub fn vae_store(&self, file: &Arc<dyn WeightFile>, device: Device) -> Option<Arc<Store>> {
        let prefix = self.vae_prefix?;
        Some(crate::vae::names::store(file, prefix, device))
    }
}

/// Prefixes of a diffusion network in a checkpoint.
const PREFIXES: [&str; 3] = ["model.diffusion_model.", "model.model.", "net."];

/// The prefix of the diffusion network: the one most keys have, else that of old files, else none.
fn diffusion_prefix(names: &[String]) -> &'static str {
    let count = |prefix: &str| names.iter().filter(|n| n.starts_with(prefix)).count();
    let mut best = ("", 5);
    for prefix in PREFIXES {
        let found = count(prefix);
        if found > best.1 {
            best = (prefix, found);
        }
    }
    if best.0.is_empty() && count("model.") > 5 {
        return "model.";
    }
    best.0
}

/// What a checkpoint or a file with a diffusion network alone is. Says by name what else the file may be.
pub fn detect_checkpoint(file: &Arc<dyn WeightFile>) -> Result<Checkpoint> {
    let names = file.names();
    let path = file.path().display().to_string();
    let refuse = |reason: String| Err(ModelError::unsupported(path.clone(), reason));
    if names.is_empty() {
        return refuse("the file holds no tensors".to_owned());
    }
    let prefix = diffusion_prefix(&names);
    let inside: Vec<&str> = names
        .iter()
        .filter_map(|n| n.strip_prefix(prefix))
        .collect();
    if let Some(family) = families::other_family(&inside, &names) {
        return refuse(format!(
            "this is a {family} model; this version runs SD1.x, SD2.x and SDXL"
        ));
    }
    let has = |key: &str| inside.binary_search(&key).is_ok();
    let started = |start: &str| inside.iter().any(|n| n.starts_with(start));
    let unet: BTreeMap<String, Origin> = if started("input_blocks.") && started("output_blocks.") {
        let own = [
            "time_embed.",
            "label_emb.",
            "input_blocks.",
            "middle_block.",
            "output_blocks.",
            "out.",
        ];
        inside
            .iter()
            .filter(|n| own.iter().any(|start| n.starts_with(start)))
            .map(|n| ((*n).to_owned(), Origin::Whole(format!("{prefix}{n}"))))
            .collect()
    } else if has("conv_in.weight") && started("down_blocks.") {
        diffusers::unet_keys(&inside)
            .into_iter()
            .map(|(key, name)| (key, Origin::Whole(format!("{prefix}{name}"))))
            .collect()
    } else {
        let what = what_it_is(&names).map_or_else(
            || format!("no known model has its {} tensors", names.len()),
            |what| format!("this is {what}, not a model"),
        );
        return refuse(what);
    };
    let store = Store::mapped(Arc::clone(file), unet.clone(), Device::cpu());
    let config = UNetConfig::detect(&store)?;
    let family = family_of(&store, &config)?;
    let variant = match config.in_channels {
        4 => Variant::Plain,
        9 => Variant::Inpaint,
        8 => Variant::InstructPix2Pix,
        other => {
            return refuse(format!(
                "this {} UNet takes {other} channels; 4, 8 and 9 are known",
                family.name()
            ));
        }
    };
    let top = |key: &str| names.iter().any(|n| n == key);
    let prediction = match family {
        Family::Sd2 if variant == Variant::Plain && spread_of_sd2(&store)? > 0.09 => Prediction::V,
        Family::Sd2 => Prediction::Eps,
        _ if top("v_pred") => Prediction::V,
        _ if top("edm_mean") && top("edm_std") => Prediction::Edm,
        _ => Prediction::Eps,
    };
    let latent_format = match family {
        Family::Sd1 | Family::Sd2 => latent_format::SD15,
        Family::Sdxl if prediction == Prediction::Edm => latent_format::PLAYGROUND,
        Family::Sdxl | Family::SdxlRefiner => latent_format::SDXL,
    };
    let with = |start: &str| names.iter().any(|n| n.starts_with(start));
    let vae_prefix = ["first_stage_model.", "vae."].into_iter().find(|p| with(p));
    let text = ["cond_stage_model.", "conditioner.embedders."]
        .into_iter()
        .any(with)
        .then(|| family.stack());
    Ok(Checkpoint {
        family,
        variant,
        config,
        prediction,
        zero_snr: prediction == Prediction::V && top("ztsnr"),
        latent_format,
        unet,
        vae_prefix,
        text,
        preview: PreviewHints::of(file.metadata()),
    })
}

fn family_of(store: &Store, config: &UNetConfig) -> Result<Family> {
    let refuse = |what: &str| {
        let reason = format!("this is a {what} model; this version runs SD1.x, SD2.x and SDXL");
        Err(ModelError::unsupported(store.file(), reason))
    };
    if store.has("label_emb.weight") || config.in_channels == 7 {
        return refuse("Stable Diffusion x4 upscaler");
    }
    Ok(match (config.adm, config.context_dim) {
        (None, None) => return refuse("UNet without a prompt"),
        (None, Some(_)) if config.linear_projection => Family::Sd2,
        (None, Some(_)) => Family::Sd1,
        (Some(4), _) => return refuse("Lotus"),
        (Some(_), Some(1024)) => return refuse("Stable unCLIP"),
        (Some(_), Some(1280)) => Family::SdxlRefiner,
        (Some(_), _) => Family::Sdxl,
    })
}

/// SD2 models that predict velocity are told apart by how one bias is spread.
fn spread_of_sd2(store: &Store) -> Result<f64> {
    let key = "output_blocks.11.1.transformer_blocks.0.norm1.bias";
    if !store.has(key) {
        return Ok(0.0);
    }
    let values = store.tensor(key)?;
    let count = values.len().max(1) as f64;
    let mean = values.data().iter().map(|&v| f64::from(v)).sum::<f64>() / count;
    let square = |v: &f32| (f64::from(*v) - mean).powi(2);
    Ok((values.data().iter().map(square).sum::<f64>() / count).sqrt())
}

/// Weights with values that are not finite numbers, at most `most` of them: what to name when a result is not a number.
pub fn nan_keys(store: &Store, most: usize) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for key in store.keys() {
        if found.len() >= most {
            break;
        }
        if store.tensor(key)?.data().iter().any(|v| !v.is_finite()) {
            found.push(key.to_owned());
        }
    }
    Ok(found)
}
