//! Other people's names for a network's weights.

use std::collections::BTreeMap;

use crate::detect::FileKeys;
use crate::lora::{LayerTable, NameMap, NetworkKeys, Part, Spelling};
use crate::store::Origin;

/// How names become keys: parts first, each wherever it stands, then the first start that fits.
pub struct Renames {
    /// Theirs and ours.
    pub parts: &'static [(&'static str, &'static str)],
    pub starts: &'static [(&'static str, &'static str)],
}

impl Renames {
    /// Our key for a name.
    pub fn key(&self, name: &str) -> String {
        let mut key = name.to_owned();
        for (theirs, ours) in self.parts {
            if key.contains(theirs) {
                key = key.replace(theirs, ours);
            }
        }
        let start = self.starts.iter().find(|(s, _)| key.starts_with(s));
        match start {
            Some((theirs, ours)) => format!("{ours}{}", &key[theirs.len()..]),
            None => key,
        }
    }

    /// Their name for a key of ours.
    pub fn name(&self, key: &str) -> String {
        let start = self.starts.iter().find(|(_, s)| key.starts_with(s));
        let mut name = match start {
            Some((theirs, ours)) => format!("{theirs}{}", &key[ours.len()..]),
            None => key.to_owned(),
        };
        for (theirs, ours) in self.parts {
            if name.contains(ours) {
                name = name.replace(ours, theirs);
            }
        }
        name
    }

    /// The network's keys with where they are in the file.
    pub fn origins(&self, keys: &FileKeys<'_>) -> BTreeMap<String, Origin> {
        keys.origins(keys.inside.iter().map(|name| (self.key(name), *name)))
    }
}

/// How LoRA files write the names of diffusers.
const SPELLINGS: [Spelling; 2] = [
    Spelling::dots("transformer."),
    Spelling::underscores("lycoris_"),
];

impl Renames {
    /// Adds the names that LoRA files have for layers which are called like this elsewhere. Layers under `swapped` have
    /// their halves the other way round there.
    pub(crate) fn add_names(&self, keys: &NetworkKeys<'_>, swapped: &str, map: &mut NameMap) {
        let mut table = LayerTable::new(0);
        for path in keys.layers() {
            let name = self.name(&format!("{path}.weight"));
            let name = name.strip_suffix(".weight").unwrap_or(&name);
            let part = if path == swapped {
                Part::Swapped
            } else {
                Part::Whole
            };
            table.add(name, path, part);
        }
        map.add_table(&table, &SPELLINGS);
    }
}

/// A weight of two halves that a file has the other way round.
pub fn swapped_halves(name: &str, rows: usize) -> Origin {
    let half = |start: usize| Origin::Rows {
        name: name.to_owned(),
        start,
        count: rows / 2,
    };
    Origin::Joined(vec![half(rows / 2), half(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_before_starts() {
        let renames = Renames {
            parts: &[(".to_q.", ".wq."), (".linear.", ".lin.")],
            starts: &[("out.lin.", "last."), ("t.", "blocks.")],
        };
        assert_eq!(renames.key("t.0.to_q.weight"), "blocks.0.wq.weight");
        assert_eq!(renames.key("out.linear.weight"), "last.weight");
        assert_eq!(renames.key("x.t.weight"), "x.t.weight");
        for name in ["t.0.to_q.weight", "out.linear.weight", "x.t.weight"] {
            assert_eq!(renames.name(&renames.key(name)), name);
        }
    }
}
