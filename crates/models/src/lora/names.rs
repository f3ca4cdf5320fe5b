//! Which weight a base name in a LoRA file means.
//!
//! Trainers name layers after the model's own keys, after diffusers' or after their own module tree, with dots or with
//! underscores; the maps hold every spelling. Names that lead to a key the model lacks are kept: their patches are
//! dropped, and reported, when they are added to the model.
//!
//! Two spellings of a model's own keys are the same for all families. What a family has beyond them is a function in its
//! folder and a row in [`LORA_NAMES`] or [`TEXT_LORA_NAMES`].

use indexmap::IndexMap;

use super::layer_table::{LayerTable, NetworkKeys};
use crate::detect::{LORA_NAMES, TEXT_LORA_NAMES};
use crate::patch::Target;

/// Adds the names of one family's layers; false if the keys are of another family.
pub type AddNames = fn(&NetworkKeys<'_>, &mut NameMap) -> bool;

/// Adds the names of one kind of text encoder, as far as it is there.
pub type AddTextNames = fn(&TextKeys<'_>, &mut NameMap);

/// Base names in the order of preference for files that hold several spellings: the last one found counts.
#[derive(Clone, Debug, Default)]
pub struct NameMap {
    by_name: IndexMap<String, Target>,
}

/// How the name of a layer is written in files: what stands before it, and whether dots become underscores.
#[derive(Clone, Copy, Debug)]
pub struct Spelling<'a> {
    prefix: &'a str,
    underscores: bool,
}

impl<'a> Spelling<'a> {
    pub const fn of(prefix: &'a str, underscores: bool) -> Self {
        Self {
            prefix,
            underscores,
        }
    }

    pub const fn dots(prefix: &'a str) -> Self {
        Self::of(prefix, false)
    }

    pub const fn underscores(prefix: &'a str) -> Self {
        Self::of(prefix, true)
    }

    fn write(&self, name: &str) -> String {
        if self.underscores {
            format!("{}{}", self.prefix, name.replace('.', "_"))
        } else {
            format!("{}{name}", self.prefix)
        }
    }
}

/// The keys of text encoders, each with its encoder's name before it (`clip_l.transformer...`).
#[derive(Clone, Copy)]
pub struct TextKeys<'a>(pub &'a [&'a str]);

impl<'a> TextKeys<'a> {
    /// Whether the layers of an encoder are among them.
    pub fn has_encoder(&self, name: &str) -> bool {
        let start = format!("{name}.transformer.");
        self.0.iter().any(|key| key.starts_with(&start))
    }

    /// Paths of all layers: keys of weights without their ending.
    fn layers(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter_map(|key| key.strip_suffix(".weight"))
    }

    /// Paths of layers that begin so, whole and without the beginning.
    pub fn inside(&self, start: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.layers()
            .filter_map(move |path| Some((path, path.strip_prefix(start)?)))
    }
}

impl NameMap {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Target)> {
        self.by_name
            .iter()
            .map(|(name, target)| (name.as_str(), target))
    }

    pub fn get(&self, name: &str) -> Option<&Target> {
        self.by_name.get(name)
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Both maps' names; those of the other count where they are in both.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.by_name.extend(other.by_name);
        self
    }

    /// A name in each of these spellings.
    pub fn add_spellings(&mut self, name: &str, target: &Target, spellings: &[Spelling<'_>]) {
        for spelling in spellings {
            self.by_name.insert(spelling.write(name), target.clone());
        }
    }

    /// A name as it is, unless something is called so already.
    pub fn add_if_new(&mut self, name: String, target: &Target) {
        self.by_name.entry(name).or_insert_with(|| target.clone());
    }

    /// The names of a table in each of these spellings.
    pub fn add_table(&mut self, table: &LayerTable, spellings: &[Spelling<'_>]) {
        for (name, target) in table.rows() {
            self.add_spellings(name, target, spellings);
        }
    }

    /// The model's own names in each of these spellings.
    pub fn add_own(&mut self, keys: &NetworkKeys<'_>, spellings: &[Spelling<'_>]) {
        for path in keys.layers() {
            let target = Target::whole(format!("diffusion_model.{path}.weight"));
            self.add_spellings(path, &target, spellings);
        }
    }

    /// A layer of a text encoder: its path, and its name in these spellings.
    pub fn add_text(&mut self, path: &str, name: &str, spellings: &[Spelling<'_>]) {
        let target = Target::whole(format!("{path}.weight"));
        self.add_spellings(name, &target, spellings);
    }

    /// Names for a diffusion network, from its keys (without a prefix) and their shapes. Targets have the prefix
    /// `diffusion_model.`.
    pub fn for_model(keys: &[(&str, &[usize])]) -> Self {
        let mut map = Self::default();
        for (key, _) in keys {
            let full = format!("diffusion_model.{key}");
            let target = Target::whole(full.clone());
            match key.strip_suffix(".weight") {
                Some(path) => map.add_spellings(
                    path,
                    &target,
                    &[
                        Spelling::underscores("lora_unet_"),
                        Spelling::dots("diffusion_model."),
                    ],
                ),
                None => map.add_spellings(&full, &target, &[Spelling::dots("")]),
            }
        }
        let keys = NetworkKeys(keys);
        // The first row that knows the keys has added its names.
        let _ = LORA_NAMES.iter().any(|add| add(&keys, &mut map));
        map
    }

    /// Names for text encoders, from keys with the encoder's name before them (`clip_l.transformer...`).
    pub fn for_text(keys: &[&str]) -> Self {
        let mut map = Self::default();
        let keys = TextKeys(keys);
        for path in keys.layers() {
            map.add_text(path, path, &[Spelling::dots("text_encoders.")]);
        }
        for add in TEXT_LORA_NAMES {
            add(&keys, &mut map);
        }
        map
    }
}
