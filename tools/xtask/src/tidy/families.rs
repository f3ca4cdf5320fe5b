//! No family of models is named outside of its own folder, the detection table and the nodes that are about it: what is
//! general must work for families that do not exist yet.

use super::{code::without_prose, complain};
use crate::tree::Source;

/// The rooms that have a general path.
const ROOMS: [&str; 2] = ["crates/models/src/", "crates/nodes/src/"];

/// Words of identifiers that name a family of diffusion models.
const DIFFUSION: &[&str] = &[
    "unet", "sd", "sd1", "sd15", "sd2", "sd3", "sd35", "sdxl", "flux", "flux1", "flux2", "lumina",
    "qwen", "wan", "hunyuan", "chroma", "cosmos", "krea", "krea2", "flux3", "anima", "mochi",
    "ltxv", "ltx2", "minimax", "pixart", "aura",
];

/// The same for text encoders. In the nodes room `clip` is the name of the link type for all of them.
const TEXT: &[&str] = &["clip", "t5", "umt5", "gemma", "llama", "mistral"];

/// Where a name may stand, and why.
const ALLOWED: &[(&str, &str)] = &[
    (
        "crates/nodes/src/model_patch",
        "nodes about patches of families, one of which takes those of two",
    ),
    (
        "crates/nodes/src/gligen.rs",
        "nodes about an add-on of one family",
    ),
    (
        "crates/nodes/src/photomaker.rs",
        "nodes about an add-on of one family",
    ),
    ("crates/models/src/sd/", "the family's folder"),
    ("crates/models/src/flux/", "the family's folder"),
    ("crates/models/src/lumina/", "the family's folder"),
    ("crates/models/src/qwen_image/", "the family's folder"),
    ("crates/models/src/qwen_image21/", "the family's folder"),
    ("crates/models/src/sd3/", "the family's folder"),
    ("crates/models/src/krea2/", "the family's folder"),
    ("crates/models/src/cosmos/", "the family's folder"),
    ("crates/models/src/anima/", "the family's folder"),
    ("crates/models/src/flux3/", "the family's folder"),
    ("crates/models/src/omnigen2/", "the family's folder"),
    ("crates/models/src/kandinsky/", "the family's folder"),
    ("crates/models/src/hidream/", "the family's folder"),
    ("crates/models/src/hunyuan/", "the family's folder"),
    ("crates/models/src/hunyuan3d/", "the family's folder"),
    ("crates/models/src/wan/", "the family's folder"),
    ("crates/models/src/ltxv/", "the family's folder"),
    ("crates/models/src/pixart/", "the family's folder"),
    ("crates/models/src/aura_flow/", "the family's folder"),
    ("crates/models/src/hunyuan_dit/", "the family's folder"),
    ("crates/models/src/cascade/", "the family's folder"),
    ("crates/models/src/mochi/", "the family's folder"),
    ("crates/models/src/ltx2/", "the family's folder"),
    ("crates/models/src/minimax/", "the family's folder"),
    ("crates/models/src/text/clip/", "the family's folder"),
    ("crates/models/src/text/t5/", "the family's folder"),
    (
        "crates/models/src/text/decoder/",
        "one network for four families",
    ),
    ("crates/models/src/text/vocabulary/", "tables by family"),
    ("crates/models/src/vision.rs", "the family's file"),
    ("crates/models/src/detect/", "the detection tables"),
    ("crates/models/src/latent_format/", "a table by family"),
    ("crates/nodes/src/lib.rs", "the list of nodes"),
    (
        "crates/nodes/src/multigpu",
        "its nodes' inputs are called so",
    ),
    (
        "crates/nodes/src/sampling/block_patches.rs",
        "nodes about UNets",
    ),
    (
        "crates/nodes/src/sampling/model_sampling.rs",
        "a node for each family",
    ),
    (
        "crates/nodes/src/sigmas/schedulers.rs",
        "a node for each family",
    ),
    (
        "crates/nodes/src/merging/specific.rs",
        "a node for each family",
    ),
    (
        "crates/nodes/src/vae_conditioning/video.rs",
        "nodes about video models",
    ),
];

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        let room = ROOMS.iter().find(|room| source.path.starts_with(**room));
        let test = source.path.ends_with("/tests.rs");
        if room.is_none() || test || !source.has_extension("rs") || allowed(&source.path) {
            continue;
        }
        let about = about(source);
        let text = source.path.starts_with(ROOMS[0]);
        let code = without_prose(&source.text);
        let code = code.lines().enumerate();
        // Tests of the general path need a family to test with.
        for (index, line) in code.take_while(|(_, line)| !line.starts_with("#[cfg(test)]")) {
            if is_list(line) {
                continue;
            }
            for word in words(line) {
                let family = DIFFUSION.contains(&&*word) || (text && TEXT.contains(&&*word));
                if family && !about.contains(&word) {
                    let text = format!("{word:?} names a family outside of its own files");
                    complaints.push(complain(source, index + 1, &text));
                }
            }
        }
    }
    complaints
}

fn allowed(path: &str) -> bool {
    ALLOWED.iter().any(|(start, _)| path.starts_with(start))
}

/// Whether a line says only that a file or a node is there.
fn is_list(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches("pub(crate) ");
    let line = line.trim_start_matches("pub ");
    line.starts_with("mod ") || line.starts_with("entry::<")
}

/// What a file may name: the words of its path, and of the ids and categories of the nodes in it.
fn about(source: &Source) -> Vec<String> {
    let mut found = words(&source.path);
    for mark in ["id = \"", "category = \""] {
        for (at, _) in source.text.match_indices(mark) {
            let rest = &source.text[at + mark.len()..];
            found.extend(rest.split('"').next().map(words).unwrap_or_default());
        }
    }
    found
}

/// The words of all identifiers of a line, in small letters: `UNetConfig` is unet and config.
pub(super) fn words(line: &str) -> Vec<String> {
    // One word of two capitals.
    let line = line.replace("UNet", "Unet").replace("UNET", "Unet");
    let mut words = Vec::new();
    let mut word = String::new();
    let mut before = ' ';
    let mut chars = line.chars().chain([' ']).peekable();
    while let Some(c) = chars.next() {
        let ends_capitals = before.is_uppercase() && chars.peek().is_some_and(|c| c.is_lowercase());
        let after_small = before.is_lowercase() || before.is_numeric();
        let starts = c.is_uppercase() && (after_small || ends_capitals);
        if (!c.is_alphanumeric() || starts) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> usize {
        let source = Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        check(&[source]).len()
    }

    #[test]
    fn identifiers_fall_into_words() {
        let found =
            words("fn sd_model(x: &UNetConfig, y: SDXL, z2: Flux2Table, LTXVNode) -> wander");
        let expected = "fn sd model x unet config y sdxl z2 flux2 table ltxv node wander";
        assert_eq!(found.join(" "), expected);
    }

    #[test]
    fn names_are_for_their_own_folder() {
        let code = "fn f(net: &UNet) {} // a UNet\nlet s = \"unet\";";
        assert_eq!(complaints("crates/models/src/denoise/batch.rs", code), 1);
        assert_eq!(complaints("crates/models/src/sd/unet/model.rs", code), 0);
        assert_eq!(complaints("crates/nodes/src/sampling/run.rs", code), 1);
        assert_eq!(complaints("crates/nodes/src/unet/patches.rs", code), 0);
        assert_eq!(complaints("crates/app/src/main.rs", code), 0);
        let node = "#[node(id = \"UNETLoader\")]\nstruct UnetLoader;";
        assert_eq!(complaints("crates/nodes/src/loaders.rs", node), 0);
        let tested = "#[cfg(test)]\nmod tests { use sd::UNet; }";
        assert_eq!(complaints("crates/nodes/src/loaders.rs", tested), 0);
        for list in ["pub mod sd;", "pub(crate) mod sd;"] {
            assert_eq!(complaints("crates/models/src/lib.rs", list), 0);
        }
        let text = "struct Clip;";
        assert_eq!(complaints("crates/models/src/text/mod.rs", text), 1);
        assert_eq!(complaints("crates/nodes/src/hooks.rs", text), 0);
    }
}
