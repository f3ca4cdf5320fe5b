//! Files whose names are those of diffusers: where our keys are in them, from the tables that LoRA files are read with.

use std::collections::BTreeMap;

use super::FileKeys;
use crate::patch::{Reorder, Target};
use crate::store::Origin;

/// What stands before all keys of the table.
const MODEL: &str = "diffusion_model.";

impl FileKeys<'_> {
    /// How many blocks there are whose names begin like this.
    pub fn blocks(&self, start: &str) -> usize {
        let there = |number: &usize| self.any_inside(&format!("{start}{number}."));
        // There cannot be more blocks than names.
        (0..self.inside.len()).take_while(there).count()
    }

    /// The rows of a tensor of the network; 0 if there is none.
    pub fn rows(&self, key: &str) -> usize {
        let info = self.file.info(&format!("{}{key}", self.prefix));
        info.and_then(|info| info.shape.first().copied())
            .unwrap_or(0)
    }

    /// Our keys with where they are, by a table of their layers' names and what each is of ours.
    pub fn origins_by(&self, table: &[(String, Target)]) -> BTreeMap<String, Origin> {
        let mut found: BTreeMap<String, Vec<(Option<usize>, Origin)>> = BTreeMap::new();
        for (theirs, target) in table {
            let ours = target.key.strip_prefix(MODEL).unwrap_or(&target.key);
            for (key, name) in self.pairs(theirs, ours) {
                let start = target.slice.map(|slice| slice.start);
                let origin = match target.reorder {
                    Some(Reorder::SwapHalves) => self.swapped(name),
                    None => Origin::Whole(format!("{}{name}", self.prefix)),
                };
                found.entry(key).or_default().push((start, origin));
            }
        }
        let joined = found.into_iter().filter_map(|(key, mut parts)| {
            parts.sort_by_key(|(start, _)| *start);
            let whole = matches!(parts.as_slice(), [(None, _)]);
            let mut parts = parts.into_iter().map(|(_, origin)| origin);
            let origin = if whole {
                parts.next()?
            } else {
                Origin::Joined(parts.collect())
            };
            Some((key, origin))
        });
        joined.collect()
    }

    /// Keys of ours with their names in the file: weight and bias of a layer, or one value.
    fn pairs(&self, theirs: &str, ours: &str) -> Vec<(String, String)> {
        let Some(layer) = ours.strip_suffix(".weight") else {
            let names = [theirs.to_owned(), format!("{theirs}.weight")];
            let name = names.into_iter().find(|name| self.has(name));
            return name
                .map(|name| (ours.to_owned(), name))
                .into_iter()
                .collect();
        };
        let parts = [".weight", ".bias"].into_iter();
        let pairs = parts.map(|part| (format!("{layer}{part}"), format!("{theirs}{part}")));
        pairs.filter(|(_, name)| self.has(name)).collect()
    }

    /// A tensor with its halves the other way round.
    fn swapped(&self, name: String) -> Origin {
        let half = self.rows(&name) / 2;
        let rows = |start: usize| Origin::Rows {
            name: format!("{}{name}", self.prefix),
            start,
            count: half,
        };
        Origin::Joined(vec![rows(half), rows(0)])
    }
}
