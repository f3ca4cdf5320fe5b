//! The names in an upscale model's file, without what trainers put before them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use super::made::{MadeFile, Recipe};
use crate::error::{ModelError, Result};
use crate::store::{Origin, WeightStore};

/// Where trainers keep the weights that are to be used.
const WRAPPERS: [&str; 4] = ["params_ema.", "params.", "state_dict.", "module."];

/// More layers than any network has; a guard against numbers that were made up.
const MOST: usize = 10_000;

pub(super) struct UpscaleKeys {
    pub(super) file: Arc<dyn WeightFile>,
    /// Names without a wrapper, with the whole ones.
    names: BTreeMap<String, String>,
}

impl UpscaleKeys {
    pub(super) fn of(file: &Arc<dyn WeightFile>) -> Self {
        let all = file.names();
        let mut names: BTreeMap<String, String> = all.into_iter().map(|n| (n.clone(), n)).collect();
        for wrapper in WRAPPERS {
            if names.keys().any(|name| name.starts_with(wrapper)) {
                let inside = names.into_iter().filter_map(|(name, whole)| {
                    Some((name.strip_prefix(wrapper)?.to_owned(), whole))
                });
                names = inside.collect();
            }
        }
        Self {
            file: Arc::clone(file),
            names,
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// The shape of a tensor that must be there with so many dimensions, none of them empty.
    pub(super) fn shape(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let file = || self.file.path().display().to_string();
        let found = self.names.get(name).and_then(|whole| self.file.info(whole));
        let shape = found
            .map(|info| info.shape)
            .ok_or_else(|| ModelError::Missing {
                file: file(),
                key: name.to_owned(),
            })?;
        if shape.len() != rank || shape.contains(&0) {
            return Err(ModelError::Shape {
                file: file(),
                key: name.to_owned(),
                expected: format!("{rank} sizes"),
                found: shape,
            });
        }
        Ok(shape)
    }

    /// The number after the largest that follows a name: how many there are of a list.
    pub(super) fn count(&self, list: &str) -> usize {
        let start = format!("{list}.");
        let inside = self.names.range(start.clone()..);
        let numbers = inside
            .take_while(|(name, _)| name.starts_with(&start))
            .filter_map(|(name, _)| name[start.len()..].split('.').next()?.parse::<usize>().ok());
        numbers.filter(|n| *n < MOST).max().map_or(0, |n| n + 1)
    }

    pub(super) fn refused(&self, reason: impl Into<String>) -> ModelError {
        ModelError::unsupported(self.file.path().display().to_string(), reason)
    }

    /// The whole name of a tensor.
    pub(super) fn whole(&self, name: &str) -> String {
        self.names
            .get(name)
            .cloned()
            .unwrap_or_else(|| name.to_owned())
    }

    /// All weights under their names.
    pub(super) fn store(&self) -> Arc<WeightStore> {
        self.renamed(|name| Some(name.to_owned()))
    }

    /// Weights under the names that a function gives them; without those it gives none.
    pub(super) fn renamed(&self, rename: impl Fn(&str) -> Option<String>) -> Arc<WeightStore> {
        self.made(rename, Vec::new())
    }

    /// The same with tensors that are made of others.
    pub(super) fn made(
        &self,
        rename: impl Fn(&str) -> Option<String>,
        recipes: Vec<(String, Recipe)>,
    ) -> Arc<WeightStore> {
        let mut keys: BTreeMap<String, Origin> = BTreeMap::new();
        for (name, whole) in &self.names {
            if let Some(key) = rename(name) {
                keys.insert(key, Origin::Whole(whole.clone()));
            }
        }
        if recipes.is_empty() {
            return WeightStore::mapped(Arc::clone(&self.file), keys, Device::cpu());
        }
        for (key, _) in &recipes {
            keys.insert(key.clone(), Origin::Whole(key.clone()));
        }
        let file = MadeFile::new(Arc::clone(&self.file), recipes);
        WeightStore::mapped(Arc::new(file), keys, Device::cpu())
    }
}

/// How often an enlarged picture's side holds the other's, and its channels, from the channels before the pixels are
/// spread: those that go in are the most likely.
pub(super) fn spread(keys: &UpscaleKeys, total: usize, input: usize) -> Result<(usize, usize)> {
    let square = |n: usize| {
        let root = (n as f64).sqrt().round() as usize;
        (root > 0 && root * root == n).then_some(root)
    };
    let fits = |channels: usize| {
        let whole = channels > 0 && total.is_multiple_of(channels);
        let scale = whole.then(|| square(total / channels)).flatten()?;
        Some((scale, channels))
    };
    [input, 3, 4, 1]
        .into_iter()
        .find_map(fits)
        .ok_or_else(|| keys.refused(format!("{total} channels make no enlarged picture")))
}
