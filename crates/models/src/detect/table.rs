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
use crate::lora::{AddTextNames, LoraNames};
use crate::ltx2;
use crate::ltxv;
use crate::lumina;
use crate::minimax;
use crate::mochi;
use crate::model_patch::FindPatch;
#[cfg(test)]
use crate::name_table::NameTable;
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
/// keys counts; what it does not name is found by the model's own keys.
pub static LORA_NAMES: &[&LoraNames] = &[
    &sd::names::LORA,
    &sd3::names::LORA,
    &cascade::LORA,
    &aura_flow::names::LORA,
    &hunyuan_dit::LORA,
    &hunyuan::names::LORA,
    &flux::names::LORA,
    &pixart::names::LORA,
    &lumina::names::LORA,
    &krea2::names::LORA,
    &anima::LORA,
    &flux3::names::LORA,
    &hidream::LORA,
    &qwen_image::LORA,
    &qwen_image21::LORA,
    &kandinsky::LORA,
    &omnigen2::LORA,
    &wan::names::LORA,
    &cosmos::names::LORA_FIRST,
    &cosmos::names::LORA,
    &mochi::LORA,
    &ace_step::LORA,
];

/// The same for text encoders. Each adds what it finds.
pub static TEXT_LORA_NAMES: &[AddTextNames] = &[
    clip::lora::names,
    families::t5::names,
    families::bert::names,
];

/// LoRA files whose names have to be rewritten before they are looked up.
pub(crate) static LORA_REWRITES: &[Rewrite] = &[flux::lora::control];

/// Autoencoders of sound.
pub static SOUND_MODELS: &[FindSound] = &[ltx2::sound::find, minimax::sound::find];

/// Networks that turn pictures into tokens of a prompt.
pub static STYLE_NETS: &[StyleKind] = &[flux::redux::KIND, sd::style::KIND];

/// All tables of other people's names that are the same for every network, with what they are called in a test.
#[cfg(test)]
pub(crate) static NAME_TABLES: &[(&str, &NameTable)] = &[
    ("sd class", &sd::names::CLASS),
    ("sd3", &sd3::names::DIFFUSERS),
    ("sd3 control", &sd3::names::CONTROL),
    ("cascade", &cascade::FIRST_RELEASE),
    ("aura_flow", &aura_flow::names::DIFFUSERS),
    ("hunyuan", &hunyuan::names::AUTHORS),
    ("flux", &flux::names::DIFFUSERS),
    ("flux 2", &flux::names::DIFFUSERS_2),
    ("flux joint", &flux::names::JOINT),
    ("flux subject", &flux::names::SUBJECT),
    ("pixart", &pixart::names::DIFFUSERS),
    ("lumina z", &lumina::names::DIFFUSERS_Z),
    ("lumina control", &lumina::names::CONTROL),
    ("lumina", &lumina::names::DIFFUSERS_LUMINA),
    ("krea2", &krea2::names::DIFFUSERS),
    ("flux3", &flux3::names::DIFFUSERS),
    ("wan", &wan::names::DIFFUSERS),
    ("cosmos", &cosmos::names::DIFFUSERS),
    ("cosmos first", &cosmos::names::FIRST),
    ("ltx2", &ltx2::names::DIFFUSERS),
    ("minimax", &minimax::names::DIFFUSERS),
    ("t5", &t5::GGUF),
    ("decoder", &decoder::GGUF),
    ("decoder after", &decoder::GGUF_AFTER),
    ("decoder sandwiched", &decoder::GGUF_SANDWICHED),
    ("clip", &clip::OPEN_CLIP),
    ("clip projection", &clip::OWN_PROJECTION),
    ("vision", &crate::vision::OPEN_CLIP),
    ("vision scaled", &crate::vision::SCALED),
];
