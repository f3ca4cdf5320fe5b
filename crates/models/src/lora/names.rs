//! Which weight a base name in a LoRA file means.
//!
//! Trainers name layers after the model's own keys, after diffusers' or after their own module tree, with dots or with
//! underscores; the maps hold every spelling. Names that lead to a key the model lacks are kept: their patches are
//! dropped, and reported, when they are added to the model.
//!
//! Two spellings of a model's own keys are the same for all families. What a family has beyond them is a [`LoraNames`] in
//! its folder, which is a row of [`LORA_NAMES`]; text networks have a function that is a row of [`TEXT_LORA_NAMES`].

use indexmap::IndexMap;

use super::network_keys::NetworkKeys;
use crate::detect::{LORA_NAMES, TEXT_LORA_NAMES};
use crate::name_table::NameTable;
use crate::patch::Target;

/// What LoRA files call the layers of a family's networks.
pub struct LoraNames {
    /// Keys that tell the family: each of its networks has one of them.
    pub signs: &'static [&'static str],
    /// The layouts whose names files have, and how they write them. Of several names of one layer the last counts.
    pub layouts: &'static [(LoraLayout, &'static [Spelling<'static>])],
}

/// Where the names of layers come from.
pub enum LoraLayout {
    /// The network's own keys.
    Own,
    Table(&'static NameTable),
    /// A table for the network that has these keys.
    Made(fn(&NetworkKeys<'_>) -> NameTable),
}

/// Adds the names of one kind of text encoder, as far as it is there.
pub type AddTextNames = fn(&TextKeys<'_>, &mut NameMap);

/// Base names in the order of preference for files that hold several spellings: the last one found counts.
#[derive(Clone, Debug, Default)]
pub struct NameMap {
    by_name: IndexMap<String, Target>,
}

/// How the name of a layer is written in files, after what stands before it.
#[derive(Clone, Copy, Debug)]
pub struct Spelling<'a> {
    prefix: &'a str,
    style: Style,
}

#[derive(Clone, Copy, Debug)]
enum Style {
    Dots,
    /// Dots become underscores.
    Underscores,
    /// Projections of attention are parts of a processor, as in old releases of diffusers.
    Processors,
}

impl<'a> Spelling<'a> {
    pub const fn dots(prefix: &'a str) -> Self {
        let style = Style::Dots;
        Self { prefix, style }
    }

    pub const fn underscores(prefix: &'a str) -> Self {
        let style = Style::Underscores;
        Self { prefix, style }
    }

    pub const fn processors(prefix: &'a str) -> Self {
        let style = Style::Processors;
        Self { prefix, style }
    }

    fn write(&self, name: &str) -> String {
        let name = match self.style {
            Style::Dots => name.to_owned(),
            Style::Underscores => name.replace('.', "_"),
            Style::Processors => {
                let name = name.replace(".to_", ".processor.to_");
                let out = name.strip_suffix(".to_out.0");
                out.map_or(name.clone(), |layer| format!("{layer}.to_out"))
            }
        };
        format!("{}{name}", self.prefix)
    }
}

impl Spelling<'static> {
    /// How most files write the names of diffusers.
    pub const DIFFUSERS: &'static [Self] =
        &[Self::dots("transformer."), Self::underscores("lycoris_")];
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
        let known = |row: &&&LoraNames| row.signs.iter().any(|sign| keys.has(sign));
        let row = LORA_NAMES.iter().find(known);
        for (layout, spellings) in row.into_iter().flat_map(|row| row.layouts) {
            let targets = match layout {
                LoraLayout::Own => NameTable::OWN.targets(&keys),
                LoraLayout::Table(table) => table.targets(&keys),
                LoraLayout::Made(make) => make(&keys).targets(&keys),
            };
            for (name, target) in &targets {
                map.add_spellings(name, target, spellings);
            }
        }
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
