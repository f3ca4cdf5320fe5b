//! What a weight file is: which family, where its parts are, how it is sampled. Only names and shapes are looked at, and
//! by some families one small tensor.
//!
//! A family is a row of [`FAMILIES`]; nothing else here knows one.

mod claims;
mod others;
mod signatures;
pub mod stacks;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use crate::denoise::{BaseModel, DiffusionNetwork, Found, FoundNetwork};
use crate::error::{ModelError, Result};
use crate::name_table::{NameTable, starting};
use crate::preview::PreviewHints;
use crate::store::{Origin, UnitOrder, WeightStore};
use crate::text::TextStack;

pub use claims::Claim;
pub use others::text_stores;
use signatures::examples;
pub use signatures::{lora_is_for, what_it_is, where_it_belongs};
pub use stacks::TEXT_STACKS;
pub(crate) use table::LORA_REWRITES;
#[cfg(test)]
pub(crate) use table::NAME_TABLES;
pub use table::{
    CONTROL_NETS, FAMILIES, LATENT_UPSCALERS, LORA_NAMES, MODEL_PATCHES, SOUND_MODELS, STYLE_NETS,
    TEXT_KINDS, TEXT_LORA_NAMES,
};

/// A family of diffusion models: how its files are recognised.
pub trait Family: Send + Sync {
    /// What its models are called, to say what this version runs.
    fn names(&self) -> &'static [&'static str];

    /// The network whose keys these are; none if it is of another family. An error says what is wrong with one of this
    /// family.
    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>>;
}

/// The names in a file, and those of its diffusion network.
pub struct FileKeys<'a> {
    pub file: &'a Arc<dyn WeightFile>,
    /// All of them, sorted.
    pub names: &'a [String],
    /// What stands before the names of the network.
    pub prefix: &'static str,
    /// The names of the network without it, sorted.
    pub inside: Vec<&'a str>,
}

impl<'a> FileKeys<'a> {
    fn of(file: &'a Arc<dyn WeightFile>, names: &'a [String]) -> Self {
        let prefix = diffusion_prefix(names);
        let inside = names.iter().filter_map(|n| n.strip_prefix(prefix));
        Self {
            file,
            names,
            prefix,
            inside: inside.collect(),
        }
    }

    /// All names of a file as those of one network.
    pub(crate) fn whole(file: &'a Arc<dyn WeightFile>, names: &'a [String]) -> Self {
        Self {
            file,
            names,
            prefix: "",
            inside: names.iter().map(String::as_str).collect(),
        }
    }

    /// Whether the network has a key.
    pub fn has(&self, key: &str) -> bool {
        self.inside.binary_search(&key).is_ok()
    }

    /// Whether keys of the network begin like this.
    pub fn any_inside(&self, start: &str) -> bool {
        !starting(&self.inside, start).is_empty()
    }

    /// Whether the file has a tensor of this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|n| n == name)
    }

    /// The number that a file says under a name; none if it says none.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        if !self.has_name(name) {
            return Ok(None);
        }
        let value = self.file.read(name)?.to_f32()?;
        let number = value.data().first().copied().map(f64::from);
        match number.filter(|n| n.is_finite() && *n > 0.0) {
            Some(number) => Ok(Some(number)),
            None => Err(self.refused(format!("{name} is not a positive number"))),
        }
    }

    /// Whether names of the file begin like this.
    pub fn any_name(&self, start: &str) -> bool {
        self.names.iter().any(|n| n.starts_with(start))
    }

    /// The network's keys with where they are in a file that has our names.
    pub fn own(&self) -> BTreeMap<String, Origin> {
        self.origins_by(&NameTable::OWN)
    }

    /// The same for a file with other people's names.
    pub fn origins_by(&self, table: &NameTable) -> BTreeMap<String, Origin> {
        table.origins(&**self.file, self.prefix, &self.inside)
    }

    /// Keys of the network with where they are in the file, from pairs of key and name.
    pub fn origins<'b>(
        &self,
        pairs: impl IntoIterator<Item = (String, &'b str)>,
    ) -> BTreeMap<String, Origin> {
        let pairs = pairs.into_iter();
        pairs
            .map(|(key, name)| (key, Origin::Whole(format!("{}{name}", self.prefix))))
            .collect()
    }

    /// What the file is, once its network is known. `text` are the encoders that checkpoints with it bring.
    pub fn checkpoint<N: DiffusionNetwork>(
        &self,
        family: &'static str,
        config: N::Config,
        keys: BTreeMap<String, Origin>,
        units: &'static UnitOrder,
        text: Option<&'static TextStack>,
    ) -> Checkpoint {
        Checkpoint {
            family,
            network: Arc::new(Found::<N>(config)),
            keys,
            units,
            vae_prefix: self.vae_prefix(),
            text: text.filter(|_| self.has_text()),
            preview: PreviewHints::of(self.file.metadata()),
        }
    }

    /// The weights behind such keys, to read shapes from.
    pub fn store(&self, origins: &BTreeMap<String, Origin>) -> Arc<WeightStore> {
        WeightStore::mapped(Arc::clone(self.file), origins.clone(), Device::cpu())
    }

    /// The prefix of the autoencoder, if the file has one.
    pub fn vae_prefix(&self) -> Option<&'static str> {
        let mut prefixes = ["first_stage_model.", "vae."].into_iter();
        prefixes.find(|prefix| self.any_name(prefix))
    }

    /// Whether the file has text encoders.
    pub fn has_text(&self) -> bool {
        let prefixes = [
            "cond_stage_model.",
            "conditioner.embedders.",
            "text_encoder.",
            "text_encoders.",
        ];
        prefixes.iter().any(|prefix| self.any_name(prefix))
    }

    /// An error that names the file.
    pub fn refused(&self, reason: impl Into<String>) -> ModelError {
        ModelError::unsupported(self.file.path().display().to_string(), reason)
    }

    /// An error for a kind of model that is known and not run.
    pub fn not_run(&self, what: &str) -> ModelError {
        self.refused(not_run(what))
    }
}

/// A recognised file with a diffusion network.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// For reports: "SDXL".
    pub family: &'static str,
    /// The network and its config.
    pub network: Arc<dyn FoundNetwork>,
    /// The network's keys and where they are in the file.
    pub keys: BTreeMap<String, Origin>,
    /// In which order the memory room sees them.
    pub units: &'static UnitOrder,
    /// The prefix of the autoencoder, if the file has one.
    pub vae_prefix: Option<&'static str>,
    /// The text encoders, if the file has any.
    pub text: Option<&'static TextStack>,
    /// How the file wants its latents shown.
    pub preview: PreviewHints,
}

impl Checkpoint {
    /// The weights of the diffusion network under the names it has here.
    pub fn store(&self, file: &Arc<dyn WeightFile>, device: Device) -> Arc<WeightStore> {
        let store = WeightStore::mapped(Arc::clone(file), self.keys.clone(), device);
        let store = store.with_units(self.units);
        match self.network.layout() {
            Ok(layout) => store.with_values_of(&layout),
            // Nor can the network be built, which says why.
            Err(_) => store,
        }
    }

    /// Keys of a store that the network does not use. Files of others may have some: they do no harm.
    pub fn unused(&self, store: &WeightStore) -> Result<Vec<String>> {
        let layout = self.network.layout()?;
        let used: BTreeSet<&str> = layout.items().iter().map(|(key, _)| key.as_str()).collect();
        let keys = store.keys().into_iter();
        Ok(keys
            .filter(|key| !used.contains(key))
            .map(str::to_owned)
            .collect())
    }

    /// The network over these weights, which are read when it is first used.
    pub fn open(&self, file: &Arc<dyn WeightFile>, device: Device) -> Result<Arc<dyn BaseModel>> {
        self.network.open(self.store(file, device))
    }

    /// The weights of the autoencoder, if the file has one.
    pub fn vae_store(
        &self,
        file: &Arc<dyn WeightFile>,
        device: Device,
    ) -> Option<Arc<WeightStore>> {
        let prefix = self.vae_prefix?;
        Some(crate::vae::names::store(file, prefix, device))
    }
}

/// Prefixes of a diffusion network in a checkpoint.
const PREFIXES: [&str; 3] = ["model.diffusion_model.", "model.model.", "net."];

/// The prefix of the diffusion network: the one most keys have, else that of old files, else none.
fn diffusion_prefix(names: &[String]) -> &'static str {
    let count = |prefix: &str| names.iter().filter(|n| n.starts_with(prefix)).count();
    let mut best = ("", 5);
    for prefix in PREFIXES {
        let found = count(prefix);
        if found > best.1 {
            best = (prefix, found);
        }
    }
    if best.0.is_empty() && count("model.") > 5 {
        return "model.";
    }
    best.0
}

/// The names of all families, as part of a sentence.
fn all_run() -> String {
    let names: Vec<&str> = FAMILIES.iter().flat_map(|f| f.names()).copied().collect();
    match names.as_slice() {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => names.concat(),
    }
}

/// Says that a kind of model is not run, and what is.
fn not_run(what: &str) -> String {
    format!("this is a {what} model; this version runs {}", all_run())
}

/// What a file that holds something else than was asked for looks like, and where it belongs.
pub(crate) fn something_else(file: &Arc<dyn WeightFile>, asked: &str) -> String {
    let names = file.names();
    if let Some(what) = what_it_is(&names) {
        return format!("this is {what}, not {asked}: {}", where_it_belongs(what));
    }
    if let Ok(found) = detect_checkpoint(file) {
        return format!(
            "this is a diffusion model ({}), not {asked}: load it with CheckpointLoaderSimple or UNETLoader",
            found.family
        );
    }
    if let Some(what) = others::text_network(file) {
        let place = where_it_belongs("a text encoder");
        return format!("this is {what}, not {asked}: {place}");
    }
    format!(
        "this is not {asked} that is known; its {} tensors are such as {}",
        names.len(),
        examples(&names)
    )
}

/// The families that a program runs.
#[derive(Clone)]
pub struct Families(pub Vec<&'static dyn Family>);

impl Default for Families {
    /// Those of the table.
    fn default() -> Self {
        Self(FAMILIES.to_vec())
    }
}

impl Families {
    /// What a file is. The first family that knows it decides.
    pub fn detect(&self, file: &Arc<dyn WeightFile>) -> Result<Checkpoint> {
        detect_among(&self.0, file)
    }
}

/// What a checkpoint or a file with a diffusion network alone is. Says by name what else the file may be.
pub fn detect_checkpoint(file: &Arc<dyn WeightFile>) -> Result<Checkpoint> {
    detect_among(FAMILIES, file)
}

fn detect_among(
    families: &[&'static dyn Family],
    file: &Arc<dyn WeightFile>,
) -> Result<Checkpoint> {
    let names = file.names();
    let keys = FileKeys::of(file, &names);
    if names.is_empty() {
        return Err(keys.refused("the file holds no tensors"));
    }
    for family in families {
        if let Some(found) = family.detect(&keys)? {
            return Ok(found);
        }
    }
    Err(keys.refused(match what_it_is(&names) {
        Some(what) => format!("this is {what}, not a model: {}", where_it_belongs(what)),
        None => match others::text_network(file) {
            Some(what) => format!("this is {what}: {}", where_it_belongs("a text encoder")),
            None => format!(
                "no known model has its {} tensors, such as {}. This version runs {}",
                names.len(),
                examples(&names),
                all_run()
            ),
        },
    }))
}

/// Weights with values that are not finite numbers, at most `most` of them: what to name when a result is not a number.
pub fn nan_keys(store: &WeightStore, most: usize) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for key in store.keys() {
        if found.len() >= most {
            break;
        }
        if store.tensor(key)?.data().iter().any(|v| !v.is_finite()) {
            found.push(key.to_owned());
        }
    }
    Ok(found)
}
