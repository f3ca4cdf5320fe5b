//! The kinds of goldens: how each is recognised and what is run. A network adds a row: the program's own detection says
//! whose the keys are, and a row asks for more only where several kinds share that.

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
use fresco_models::detect::Claim;
use fresco_models::vae::VaeConfig;
use fresco_tensor::Device;

use crate::golden::Golden;
use crate::report::Report;

type Run = fn(&Golden, &Device, &mut Report<'_>) -> Result<()>;

pub(crate) struct Kind {
    /// For people: "UNet".
    pub(crate) name: &'static str,
    sign: Sign,
    /// Inputs, results or parts that tell it from other kinds of the same sign.
    with: fn(&Golden) -> bool,
    pub(crate) run: Run,
}

/// What the program's own detection has to say of a golden's keys.
enum Sign {
    Claim(Claim),
    /// A text network of one of these names.
    Text(&'static [&'static str]),
    Autoencoder(fn(&VaeConfig) -> bool),
    /// No loader takes such keys as a file, or there are none: the golden's own contents tell alone.
    Own,
}

impl Kind {
    const fn new(sign: Sign, name: &'static str, run: Run) -> Self {
        Self {
            name,
            sign,
            with: |_| true,
            run,
        }
    }

    /// Diffusion networks of a family, by its first name.
    const fn diffusion(family: &'static str, name: &'static str, run: Run) -> Self {
        Self::of(Claim::Diffusion(family), name, run)
    }

    /// Networks of files that a table of detection claims.
    const fn of(claim: Claim, name: &'static str, run: Run) -> Self {
        Self::new(Sign::Claim(claim), name, run)
    }

    const fn text(kinds: &'static [&'static str], name: &'static str, run: Run) -> Self {
        Self::new(Sign::Text(kinds), name, run)
    }

    const fn autoencoder(is: fn(&VaeConfig) -> bool, name: &'static str, run: Run) -> Self {
        Self::new(Sign::Autoencoder(is), name, run)
    }

    const fn own(name: &'static str, with: fn(&Golden) -> bool, run: Run) -> Self {
        Self::new(Sign::Own, name, run).with(with)
    }

    const fn with(self, with: fn(&Golden) -> bool) -> Self {
        Self { with, ..self }
    }

    fn recognises(&self, golden: &Golden) -> bool {
        let signed = match self.sign {
            Sign::Claim(claim) => golden.claim() == Some(claim),
            Sign::Text(kinds) => {
                matches!(golden.claim(), Some(Claim::Text(kind)) if kinds.contains(&kind))
            }
            Sign::Autoencoder(is) => golden.autoencoder().is_some_and(is),
            Sign::Own => true,
        };
        signed && (self.with)(golden)
    }
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
        .find(|kind| kind.recognises(golden))
}
