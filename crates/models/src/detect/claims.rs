//! Whose a file is, by the tables that loaders go through, whether or not its network would be run.

use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use super::FileKeys;
use super::table::{
    CONTROL_NETS, FAMILIES, LATENT_UPSCALERS, MODEL_PATCHES, STYLE_NETS, TEXT_KINDS,
};
use crate::error::Result;

/// The table that knows a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    ControlNet,
    ModelPatch,
    LatentUpscaler,
    StyleNet,
    /// A diffusion network, with the first name of its family.
    Diffusion(&'static str),
    /// A text network, with the name of its kind.
    Text(&'static str),
}

impl Claim {
    /// The first table that knows the names in a file. A row that refuses the file knows it, too: networks of tests have
    /// shapes that no published one has.
    pub fn of(file: &Arc<dyn WeightFile>) -> Option<Self> {
        fn knows<T>(found: &Result<Option<T>>) -> bool {
            !matches!(found, Ok(None))
        }
        let (names, cpu) = (file.names(), Device::cpu());
        let mut nets = CONTROL_NETS.iter();
        if nets.any(|find| knows(&find(file, &names, &cpu))) {
            return Some(Self::ControlNet);
        }
        let mut patches = MODEL_PATCHES.iter();
        if patches.any(|find| knows(&find(file, &names, &cpu))) {
            return Some(Self::ModelPatch);
        }
        if LATENT_UPSCALERS.iter().any(|find| knows(&find(file, &cpu))) {
            return Some(Self::LatentUpscaler);
        }
        if STYLE_NETS.iter().any(|kind| file.info(kind.key).is_some()) {
            return Some(Self::StyleNet);
        }
        let keys = FileKeys::of(file, &names);
        let family = FAMILIES.iter().find(|family| knows(&family.detect(&keys)));
        if let Some(family) = family {
            return family.names().first().map(|name| Self::Diffusion(name));
        }
        let text = TEXT_KINDS.iter().find_map(|find| find(&**file));
        text.map(|kind| Self::Text(kind.name))
    }
}
