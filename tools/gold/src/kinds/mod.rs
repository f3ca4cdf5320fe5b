//! The kinds of goldens: how each is recognised and what is run. A network adds a row.

mod causal_vae;
mod chat;
mod cosmos;
mod film_vae;
mod flux;
mod flux3;
mod formats;
mod hunyuan;
mod image_nets;
mod krea2;
mod ltx2;
mod ltxv;
mod lumina;
mod minimax;
mod mochi;
mod more_images;
mod older_images;
mod pass;
mod qwen;
mod qwen21;
mod sampled;
mod sd;
mod sd3;
mod solids;
mod sound;
mod style;
mod tables;
mod text;
mod uneven;
mod upscale;
mod wan;
mod windows;

use anyhow::Result;
use fresco_tensor::Device;

use crate::golden::Golden;
use crate::report::Report;

pub(crate) struct Kind {
    /// For people: "UNet".
    pub(crate) name: &'static str,
    /// Told from keys and config.
    pub(crate) is: fn(&Golden) -> bool,
    pub(crate) run: fn(&Golden, &Device, &mut Report<'_>) -> Result<()>,
}

/// The first that recognises a golden runs it.
#[rustfmt::skip]
static KINDS: &[&[Kind]] = &[
    windows::KINDS,
    formats::KINDS,
    ltx2::KINDS,
    minimax::KINDS,
    film_vae::KINDS,
    sd::KINDS,
    sd3::KINDS,
    image_nets::KINDS,
    flux::KINDS,
    lumina::KINDS,
    style::KINDS,
    tables::KINDS,
    sampled::KINDS,
    qwen::KINDS,
    qwen21::KINDS,
    causal_vae::KINDS,
    krea2::KINDS,
    cosmos::KINDS,
    flux3::KINDS,
    more_images::KINDS,
    sound::KINDS,
    older_images::KINDS,
    hunyuan::KINDS,
    wan::KINDS,
    ltxv::KINDS,
    mochi::KINDS,
    solids::KINDS,
    text::KINDS,
    uneven::KINDS,
    chat::KINDS,
    upscale::KINDS,
];

pub(crate) fn of(golden: &Golden) -> Option<&'static Kind> {
    KINDS
        .iter()
        .copied()
        .flatten()
        .find(|kind| (kind.is)(golden))
}
