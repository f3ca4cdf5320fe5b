//! The sets of text networks that models read prompts with, and which set files make for a loader's `type`.

mod chat;
mod films;
mod gemma;
mod older;
mod pairs;
mod songs;
mod t5_alone;

use std::fmt;

use crate::sd::text as sd;
use crate::store::WeightStore;
use crate::text::decoder::{LLAMA, QWEN3, QWEN3_CODES, QWEN3_VL};
use crate::text::{TextKind, TextStack};

/// The table of tokens of language models.
const TABLE: &str = "model.embed_tokens.weight";

pub use chat::{
    ANIMA, EDIT_TEMPLATE, FLUX2, FLUX2_KLEIN_4B, FLUX2_KLEIN_9B, FLUX3, HIDREAM, HUNYUAN_IMAGE,
    HUNYUAN_VIDEO, HUNYUAN_VIDEO_15, KANDINSKY5, KANDINSKY5_IMAGE, KREA2, OMNIGEN2, OVIS,
    PROMPT_WRITER, QWEN_IMAGE, QWEN_IMAGE21, Z_IMAGE,
};
pub use films::MINIMAX;
pub use gemma::{GEMMA4_WRITER, LTX2, LTX25, LUMINA2, NEWBIE};
pub use older::{CASCADE, HUNYUAN_DIT};
pub use pairs::{FLUX, SD3};
pub use songs::{ACE, ACE15};
pub use t5_alone::{AURA_FLOW, CHROMA, COSMOS, LTXV, MOCHI, STABLE_AUDIO, WAN};

/// All sets, for what asks about each of them.
pub static TEXT_STACKS: &[&TextStack] = &[
    &sd::SD1,
    &sd::SD2,
    &sd::SDXL,
    &sd::SDXL_REFINER,
    &SD3,
    &FLUX,
    &CHROMA,
    &MOCHI,
    &LTXV,
    &LTX2,
    &LTX25,
    &WAN,
    &COSMOS,
    &STABLE_AUDIO,
    &AURA_FLOW,
    &Z_IMAGE,
    &FLUX2,
    &FLUX2_KLEIN_4B,
    &FLUX2_KLEIN_9B,
    &QWEN_IMAGE,
    &QWEN_IMAGE21,
    &HUNYUAN_IMAGE,
    &HUNYUAN_VIDEO,
    &HUNYUAN_VIDEO_15,
    &KANDINSKY5,
    &KANDINSKY5_IMAGE,
    &OMNIGEN2,
    &OVIS,
    &LUMINA2,
    &NEWBIE,
    &KREA2,
    &FLUX3,
    &MINIMAX,
    &PROMPT_WRITER,
    &GEMMA4_WRITER,
    &ANIMA,
    &HIDREAM,
    &CASCADE,
    &HUNYUAN_DIT,
    &ACE,
    &ACE15,
];

/// A network in a file, and its weights.
pub(super) type FoundText<'a> = (&'static TextKind, &'a WeightStore);

/// Which set files make, for some types of loaders.
struct StackRule {
    /// For any type if there are none.
    types: &'static [&'static str],
    /// None where this version knows the type but cannot run it.
    stack: Option<&'static TextStack>,
    /// Channels of the first network, a language model, if they matter.
    width: Option<usize>,
    /// What must hold besides.
    fits: fn(&[FoundText<'_>]) -> bool,
}

impl StackRule {
    fn holds(&self, found: &[FoundText<'_>]) -> bool {
        let wide = self.width.is_none_or(|n| width(found, TABLE) == Some(n));
        wide && (self.fits)(found)
    }
}

const fn of(types: &'static [&'static str], stack: &'static TextStack) -> StackRule {
    StackRule {
        types,
        stack: Some(stack),
        width: None,
        fits: |_| true,
    }
}

/// For any type.
const fn any(stack: &'static TextStack) -> StackRule {
    of(&[], stack)
}

/// For any type, if the first network, a language model, is so wide.
const fn sized(width: usize, stack: &'static TextStack) -> StackRule {
    StackRule {
        width: Some(width),
        ..any(stack)
    }
}

const fn refused(types: &'static [&'static str]) -> StackRule {
    StackRule {
        types,
        stack: None,
        width: None,
        fits: |_| true,
    }
}

/// Numbers of a token of the first network.
fn width(found: &[FoundText<'_>], key: &str) -> Option<usize> {
    let (_, store) = found.first()?;
    store.shape(key)?.get(1).copied()
}

/// In this order; the first that takes the files decides.
static RULES: &[StackRule] = &[
    of(&["sd3"], &SD3),
    of(&["flux"], &FLUX),
    of(&["pixart", "chroma"], &CHROMA),
    of(&["ltxv"], &LTXV),
    of(&["ltxv"], &LTX2),
    of(&["ltxv"], &LTX25),
    of(&["cosmos"], &COSMOS),
    of(&["stable_audio"], &STABLE_AUDIO),
    StackRule {
        fits: |found| width(found, "shared.weight") == Some(2048),
        ..any(&AURA_FLOW)
    },
    of(&["wan"], &WAN),
    of(&["hidream"], &HIDREAM),
    of(&["stable_cascade"], &CASCADE),
    of(&["lumina2"], &LUMINA2),
    of(&["lumina2"], &Z_IMAGE),
    StackRule {
        width: Some(4096),
        ..of(&["flux2"], &FLUX2_KLEIN_9B)
    },
    of(&["flux2"], &FLUX2_KLEIN_4B),
    of(&["qwen_image"], &QWEN_IMAGE),
    of(&["qwen_image"], &QWEN_IMAGE21),
    of(&["hunyuan_image"], &HUNYUAN_IMAGE),
    of(&["hunyuan_video"], &HUNYUAN_VIDEO),
    of(&["hunyuan_video_15"], &HUNYUAN_VIDEO_15),
    of(&["kandinsky5"], &KANDINSKY5),
    of(&["kandinsky5_image"], &KANDINSKY5_IMAGE),
    of(&["newbie"], &NEWBIE),
    of(&["omnigen2"], &OMNIGEN2),
    of(&["ovis"], &OVIS),
    of(&["krea2"], &KREA2),
    of(&["flux3"], &FLUX3),
    of(&["minimax"], &MINIMAX),
    of(&["ace"], &ACE),
    of(&["ace"], &ACE15),
    refused(&[
        "moss_image",
        "fibo2",
        "mage",
        "boogu",
        "lens",
        "longcat_image",
        "pixeldit",
        "joyimage",
        "cogvideox",
    ]),
    // Where the type says nothing the widths of the published sizes do. Templates use "ideogram4" for language models that
    // only write text, for which any set will do.
    sized(2048, &OMNIGEN2),
    any(&QWEN_IMAGE),
    sized(1024, &ANIMA),
    sized(2048, &OVIS),
    sized(4096, &FLUX2_KLEIN_9B),
    any(&Z_IMAGE),
    sized(2560, &KREA2),
    sized(5120, &MINIMAX),
    any(&QWEN_IMAGE21),
    any(&LUMINA2),
    any(&LTX2),
    any(&LTX25),
    any(&FLUX2),
    StackRule {
        fits: |found| found.len() == 1 && *found[0].0 == LLAMA,
        ..any(&HIDREAM)
    },
    any(&PROMPT_WRITER),
    any(&GEMMA4_WRITER),
    any(&sd::SD1),
    any(&sd::SD2),
    any(&sd::SDXL),
    any(&sd::SDXL_REFINER),
    any(&MOCHI),
    any(&WAN),
];

/// Types whose language model also sees pictures. A file that leaves that part out looks like one that never had it.
const SEEING: [&str; 3] = ["krea2", "flux3", "minimax"];

/// The kind of a network that a loader of this type expects.
pub(super) fn expected_kind(
    kind: &str,
    found: &'static TextKind,
    store: &WeightStore,
) -> &'static TextKind {
    if *found != QWEN3 {
        return found;
    }
    match kind {
        kind if SEEING.contains(&kind) => &QWEN3_VL,
        // Of two files that are alike in everything else, in any order.
        "ace" if songs::writes_codes(store) => &QWEN3_CODES,
        _ => found,
    }
}

/// Whether a set has a place for each of these, and every place that must be taken is.
fn takes(stack: &TextStack, found: &[FoundText<'_>]) -> bool {
    let mut taken = vec![false; stack.parts.len()];
    for (kind, _) in found {
        let mut free = taken.iter_mut().zip(stack.parts);
        let free = free.find(|(taken, part)| !**taken && part.kinds.contains(kind));
        let Some((place, _)) = free else { return false };
        *place = true;
    }
    let mut places = taken.iter().zip(stack.parts);
    places.all(|(taken, part)| *taken || part.optional)
}

/// The set that files make for a loader of this type.
pub(super) fn choose(kind: &str, found: &[FoundText<'_>]) -> Result<&'static TextStack, NoStack> {
    // Several files that a type does not take are a mistake, not the set of another model.
    let strict = found.len() > 1 && RULES.iter().any(|rule| rule.types.contains(&kind));
    let concerned =
        |rule: &&StackRule| rule.types.contains(&kind) || (rule.types.is_empty() && !strict);
    for rule in RULES.iter().filter(concerned) {
        match rule.stack {
            None => return Err(NoStack::NotRun),
            Some(stack) if takes(stack, found) && rule.holds(found) => return Ok(stack),
            Some(_) => {}
        }
    }
    let other = RULES.iter().find(|rule| {
        let stack = rule.stack.filter(|stack| takes(stack, found));
        stack.is_some() && rule.holds(found)
    });
    // Where nobody says a type, whatever uses networks like these will do.
    if let Some(stack) = other
        .and_then(|rule| rule.stack)
        .filter(|_| kind.is_empty())
    {
        return Ok(stack);
    }
    Err(NoStack::Unfit {
        type_for: other.and_then(|rule| rule.types.first()).copied(),
        needed: needed(kind),
    })
}

/// What a type needs, in words.
fn needed(kind: &str) -> Option<String> {
    let rule = RULES.iter().find(|rule| rule.types.contains(&kind))?;
    let parts = rule.stack?.parts;
    let names = parts.iter().map(|part| {
        let kinds: Vec<&str> = part.kinds.iter().map(|kind| kind.name).collect();
        format!("{} ({})", part.name, kinds.join(" or "))
    });
    let names: Vec<String> = names.collect();
    let required = parts.iter().filter(|part| !part.optional).count();
    let how = if required == parts.len() {
        ""
    } else {
        "any of "
    };
    Some(format!("{how}{}", names.join(", ")))
}

/// Why files make no set.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoStack {
    /// The type is known and not run.
    NotRun,
    Unfit {
        /// A type for which these files would do.
        type_for: Option<&'static str>,
        needed: Option<String>,
    },
}

impl fmt::Display for NoStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun => f.write_str("text encoders of this type are not supported yet"),
            Self::Unfit { type_for, needed } => {
                f.write_str("no model of this type uses them together")?;
                if let Some(needed) = needed {
                    write!(f, "; it takes {needed}")?;
                }
                if let Some(other) = type_for {
                    write!(f, "; they belong to the type {other:?}")?;
                }
                Ok(())
            }
        }
    }
}
