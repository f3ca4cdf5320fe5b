//! The tables of what this version runs. A new family is a row here and files in a folder of its own.

use super::Family;
use crate::control::FindControl;
use crate::flux;
use crate::lumina;
use crate::model_patch::FindPatch;
use crate::sd;
use crate::text::clip;
use crate::text::{FindText, TextStack};

/// The families of diffusion models, in the order they are looked for.
pub static FAMILIES: &[&dyn Family] = &[&sd::Sd, &flux::Flux, &lumina::Lumina];

/// Networks that steer a diffusion model with a picture.
pub static CONTROL_NETS: &[FindControl] = &[sd::control::find];

/// Networks in files of their own that act inside a diffusion model, in the order the reference looks for them.
pub static MODEL_PATCHES: &[FindPatch] = &[lumina::control::find];

/// Which text network a file of its own holds.
pub static TEXT_KINDS: &[FindText] = &[clip::find];

/// The sets of text networks that models use.
pub static TEXT_STACKS: &[&TextStack] = &[
    &sd::text::SD1,
    &sd::text::SD2,
    &sd::text::SDXL,
    &sd::text::SDXL_REFINER,
];
