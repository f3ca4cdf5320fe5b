//! The tables of what this version runs. A new family is a row here and files in a folder of its own.

use super::Family;
use crate::anima;
use crate::control::FindControl;
use crate::flux;
use crate::flux3;
use crate::hidream;
use crate::hunyuan;
use crate::kandinsky;
use crate::krea2;
use crate::lora::convert::Rewrite;
use crate::lora::families;
use crate::lora::{AddNames, AddTextNames};
use crate::lumina;
use crate::model_patch::FindPatch;
use crate::omnigen2;
use crate::qwen_image;
use crate::qwen_image21;
use crate::sd;
use crate::sd3;
use crate::style::StyleKind;
use crate::text::FindText;
use crate::text::{clip, decoder, post_norm, t5};

/// The families of diffusion models, in the order they are looked for.
pub static FAMILIES: &[&dyn Family] = &[
    &sd::Sd,
    &sd3::Sd3,
    &flux::Flux,
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
];

/// Networks that steer a diffusion model with a picture.
pub static CONTROL_NETS: &[FindControl] = &[
    qwen_image::control::find,
    flux::control::find,
    sd3::control::find,
    sd::control::find,
];

/// Networks in files of their own that act inside a diffusion model, in the order the reference looks for them.
pub static MODEL_PATCHES: &[FindPatch] = &[qwen_image::patch::find, lumina::control::find];

/// Which text network a file of its own holds.
pub static TEXT_KINDS: &[FindText] = &[clip::find, post_norm::find, t5::find, decoder::find];

/// The names that LoRA files have for the layers of diffusion networks, by family. The first row that knows a network's
/// keys decides; what it does not name is found by the model's own keys.
pub static LORA_NAMES: &[AddNames] = &[
    sd::lora::names,
    sd3::lora::names,
    families::cascade::names,
    families::aura_flow::names,
    families::hunyuan_dit::names,
    families::hunyuan_video::names,
    flux::lora::names,
    families::pixart::names,
    lumina::lora::names,
    krea2::lora::names,
    anima::lora::names,
    flux3::lora::names,
    hidream::lora::names,
    qwen_image::lora::names,
    qwen_image21::lora::names,
    kandinsky::lora::names,
    omnigen2::lora::names,
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
/// Networks that turn pictures into tokens of a prompt.
pub static STYLE_NETS: &[StyleKind] = &[flux::redux::KIND, sd::style::KIND];
