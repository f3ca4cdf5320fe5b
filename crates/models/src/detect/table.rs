//! The tables of what this version runs. A new family is a row here and files in a folder of its own.

use super::Family;
use crate::ace_step;
use crate::anima;
use crate::aura_flow;
use crate::cascade;
use crate::control::FindControl;
use crate::cosmos;
use crate::flux;
use crate::flux3;
use crate::hidream;
use crate::hunyuan;
use crate::hunyuan_dit;
use crate::hunyuan3d;
use crate::kandinsky;
use crate::krea2;
use crate::latent_upscale::FindLatentUpscaler;
use crate::lora::convert::Rewrite;
use crate::lora::families;
use crate::lora::{AddNames, AddTextNames};
use crate::ltx2;
use crate::ltxv;
use crate::lumina;
use crate::minimax;
use crate::mochi;
use crate::model_patch::FindPatch;
use crate::omnigen2;
use crate::pixart;
use crate::qwen_image;
use crate::qwen_image21;
use crate::sd;
use crate::sd3;
use crate::stable_audio;
use crate::style::StyleKind;
use crate::text::FindText;
use crate::text::{clip, decoder, post_norm, t5};
use crate::wan;
use crate::waves::FindSound;

/// The families of diffusion models, in the order they are looked for.
pub static FAMILIES: &[&dyn Family] = &[
    &sd::Sd,
    &cascade::Cascade,
    &stable_audio::StableAudio,
    &sd3::Sd3,
    &aura_flow::AuraFlow,
    &hunyuan_dit::HunyuanDit,
    &flux::Flux,
    &ace_step::AceStep,
    &pixart::PixArt,
    &lumina::Lumina,
    &qwen_image::QwenImage,
    &qwen_image21::QwenImage21,
    &krea2::Krea,
    &anima::AnimaFamily,
    &flux3::Flux3,
    &omnigen2::OmniGen2,
    &kandinsky::Kandinsky,
    &hidream::HiDream,
    &hunyuan::Hunyuan,
    &wan::Wan,
    &ltx2::Ltx2,
    &minimax::MiniMax,
    &ltxv::Ltxv,
    &cosmos::Cosmos,
    &mochi::Mochi,
    &hunyuan3d::Hunyuan3d,
];

/// Networks that steer a diffusion model with a picture.
pub static CONTROL_NETS: &[FindControl] = &[
    qwen_image::control::find,
    qwen_image::fun_control::find,
    flux::control::find,
    sd3::control::find,
    sd::control::find,
];

/// Networks in files of their own that act inside a diffusion model, in the order the reference looks for them.
pub static MODEL_PATCHES: &[FindPatch] = &[
    qwen_image::patch::find,
    flux::style_tokens::find,
    lumina::control::find,
    wan::talk::find,
    anima::lite::find,
];

/// Networks that make latents larger.
pub static LATENT_UPSCALERS: &[FindLatentUpscaler] =
    &[hunyuan::upsampler::find, ltx2::upsampler::find];

/// Which text network a file of its own holds.
pub static TEXT_KINDS: &[FindText] = &[
    clip::find,
    post_norm::find,
    t5::find,
    ltx2::text::find,
    decoder::find,
];

/// The names that LoRA files have for the layers of diffusion networks, by family. The first row that knows a network's
/// keys decides; what it does not name is found by the model's own keys.
pub static LORA_NAMES: &[AddNames] = &[
    sd::lora::names,
    sd3::lora::names,
    cascade::lora::names,
    aura_flow::lora::names,
    hunyuan_dit::lora::names,
    families::hunyuan_video::names,
    flux::lora::names,
    pixart::lora::names,
    lumina::lora::names,
    krea2::lora::names,
    anima::lora::names,
    flux3::lora::names,
    hidream::lora::names,
    qwen_image::lora::names,
    qwen_image21::lora::names,
    kandinsky::lora::names,
    omnigen2::lora::names,
    wan::lora::names,
    cosmos::lora::names,
    families::bare::names,
];

/// The same for text encoders. Each adds what it finds.
pub static TEXT_LORA_NAMES: &[AddTextNames] = &[
    clip::lora::names,
    families::t5::names,
    families::bert::names,
];

/// LoRA files whose names have to be rewritten before they are looked up.
pub(crate) static LORA_REWRITES: &[Rewrite] =
    &[flux::lora::control, families::wan::fun, flux::lora::subject];

/// Autoencoders of sound.
pub static SOUND_MODELS: &[FindSound] = &[ltx2::sound::find, minimax::sound::find];

/// Networks that turn pictures into tokens of a prompt.
pub static STYLE_NETS: &[StyleKind] = &[flux::redux::KIND, sd::style::KIND];
