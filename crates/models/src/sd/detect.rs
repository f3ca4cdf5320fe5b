//! How files of this family are recognised.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{SdConfig, Variant, VectorKind};
use super::names::{self, Levels};
use super::text;
use super::unet::{UNet, UNetConfig};
use crate::denoise::Found;
use crate::detect::{Checkpoint, Family, FileKeys};
use crate::error::Result;
use crate::latent_format::{self, LatentFormat};
use crate::model_sampling::{ModelSampling, Prediction};
use crate::preview::PreviewHints;
use crate::store::{Blocks, Origin, UnitOrder, WeightStore};
use crate::text::TextStack;

/// The order of the parts of a UNet and of a control net.
pub static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "time_embed",
        "label_emb",
        "input_blocks",
        "zero_convs",
        "input_hint_block",
        "middle_block",
        "middle_block_out",
        "output_blocks",
        "out",
    ],
    blocks: &[
        Blocks::List("input_blocks"),
        Blocks::One("middle_block"),
        Blocks::List("output_blocks"),
    ],
    values: &["task_embedding", "mix_factor"],
};

/// Noise levels that files of models with a range of their own (CosXL) say.
const LARGEST: &str = "edm_vpred.sigma_max";
const SMALLEST: &str = "edm_vpred.sigma_min";

/// Where films around a picture have their autoencoder.
const AROUND: &str = "conditioner.embedders.1.encoder.";

/// The kinds of UNets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sd1,
    Sd2,
    Sdxl,
    SdxlRefiner,
    /// SD2.x that is led by pictures.
    Unclip,
    /// SD2.x that makes a map of depths or directions from a picture.
    Lotus,
    /// Films of one picture, or around it.
    Film,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Sd1 => "SD1.x",
            Self::Sd2 => "SD2.x",
            Self::Sdxl => "SDXL",
            Self::SdxlRefiner => "SDXL refiner",
            Self::Unclip => "Stable unCLIP",
            Self::Lotus => "Lotus",
            Self::Film => "Stable Video Diffusion",
        }
    }

    /// The text encoders that checkpoints bring.
    fn text(self) -> Option<&'static TextStack> {
        Some(match self {
            Self::Sd1 => &text::SD1,
            Self::Sd2 | Self::Unclip | Self::Lotus => &text::SD2,
            Self::Sdxl => &text::SDXL,
            Self::SdxlRefiner => &text::SDXL_REFINER,
            Self::Film => return None,
        })
    }

    fn latent_format(self, prediction: Prediction) -> LatentFormat {
        match self {
            Self::Sd1 | Self::Sd2 | Self::Unclip | Self::Lotus | Self::Film => latent_format::SD15,
            Self::Sdxl if prediction == Prediction::Edm => latent_format::PLAYGROUND,
            Self::Sdxl | Self::SdxlRefiner => latent_format::SDXL,
        }
    }
}

/// Stable Diffusion 1, 2 and XL.
pub struct Sd;

impl Family for Sd {
    fn names(&self) -> &'static [&'static str] {
        &[
            "SD1.x",
            "SD2.x",
            "SDXL",
            "Stable unCLIP",
            "Lotus",
            "Stable Video Diffusion",
        ]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let Some(origins) = unet_keys(keys)? else {
            return Ok(None);
        };
        let store = keys.store(&origins);
        let unet = UNetConfig::detect(&store)?;
        let kind = kind_of(keys, &store, &unet)?;
        if !matches!(unet.in_channels, 4 | 8 | 9) {
            return Err(keys.refused(format!(
                "this {} UNet takes {} channels; 4, 8 and 9 are known",
                kind.name(),
                unet.in_channels
            )));
        }
        let plain = Variant::of(&unet) == Some(Variant::Plain);
        let prediction = prediction(keys, &store, kind, plain)?;
        let sampling = match prediction {
            _ if kind == Kind::Film => {
                ModelSampling::continuous_edm(Prediction::V, 0.002, 700.0, 1.0)
            }
            // Playground 2.5.
            Prediction::Edm => ModelSampling::continuous_edm(Prediction::Edm, 0.002, 80.0, 0.5),
            Prediction::V if keys.has_name(LARGEST) => {
                let number =
                    |name: &str, or: f64| -> Result<f64> { Ok(keys.number(name)?.unwrap_or(or)) };
                let (least, most) = (number(SMALLEST, 0.002)?, number(LARGEST, 120.0)?);
                ModelSampling::continuous_edm(Prediction::V, least, most, 1.0)
            }
            other => {
                ModelSampling::discrete(other, other == Prediction::V && keys.has_name("ztsnr"))
            }
        };
        let format = kind.latent_format(prediction);
        let file = keys.file.path().display().to_string();
        let config = SdConfig::new(&file, unet, format, sampling)?;
        Ok(Some(Checkpoint {
            family: kind.name(),
            network: Arc::new(Found::<UNet>(config)),
            keys: origins,
            units: &UNITS,
            vae_prefix: match kind {
                Kind::Film if keys.any_name(AROUND) => Some(AROUND),
                _ => keys.vae_prefix(),
            },
            text: kind.text().filter(|_| keys.has_text()),
            preview: PreviewHints::of(keys.file.metadata()),
        }))
    }
}

/// The keys of a UNet under the names of the original, or none if the file has no UNet of a kind that is known.
fn unet_keys(keys: &FileKeys<'_>) -> Result<Option<BTreeMap<String, Origin>>> {
    if keys.any_name("cc_projection.") {
        return Err(keys.not_run("Zero123"));
    }
    if keys.any_inside("input_blocks.") && keys.any_inside("output_blocks.") {
        const OWN: [&str; 6] = [
            "time_embed.",
            "label_emb.",
            "input_blocks.",
            "middle_block.",
            "output_blocks.",
            "out.",
        ];
        let own = keys.inside.iter().copied();
        let own = own.filter(|n| OWN.iter().any(|start| n.starts_with(start)));
        return Ok(Some(keys.origins(own.map(|n| (n.to_owned(), n)))));
    }
    if keys.has("conv_in.weight") && keys.any_inside("down_blocks.") {
        let mut origins = keys.origins_by(&Levels::of_diffusers(&keys.inside).table());
        origins.append(&mut keys.origins_by(&names::CLASS));
        return Ok(Some(origins));
    }
    Ok(None)
}

fn kind_of(keys: &FileKeys<'_>, store: &WeightStore, config: &UNetConfig) -> Result<Kind> {
    let refuse = |what: &str| Err(keys.not_run(what));
    if store.has("label_emb.weight") || config.in_channels == 7 {
        return refuse("Stable Diffusion x4 upscaler");
    }
    if config.timed {
        return Ok(Kind::Film);
    }
    Ok(match (config.adm, config.context_dim) {
        (None, None) => return refuse("UNet without a prompt"),
        (None, Some(_)) if config.linear_projection => Kind::Sd2,
        (None, Some(_)) => Kind::Sd1,
        (Some(_), _) => match VectorKind::of(config) {
            VectorKind::Lotus => Kind::Lotus,
            VectorKind::Seen => Kind::Unclip,
            VectorKind::Sizes if config.context_dim == Some(1280) => Kind::SdxlRefiner,
            VectorKind::Sizes => Kind::Sdxl,
        },
    })
}

fn prediction(
    keys: &FileKeys<'_>,
    store: &WeightStore,
    kind: Kind,
    plain: bool,
) -> Result<Prediction> {
    Ok(match kind {
        Kind::Lotus => Prediction::ImgToImg,
        Kind::Sd2 | Kind::Unclip if plain && spread_of_sd2(store)? > 0.09 => Prediction::V,
        Kind::Sd2 | Kind::Unclip => Prediction::Eps,
        Kind::Film => Prediction::V,
        _ if keys.has_name("edm_mean") && keys.has_name("edm_std") => Prediction::Edm,
        _ if keys.has_name("v_pred") || keys.has_name(LARGEST) => Prediction::V,
        _ => Prediction::Eps,
    })
}

/// SD2 models that predict velocity are told apart by how one bias is spread.
fn spread_of_sd2(store: &WeightStore) -> Result<f64> {
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
