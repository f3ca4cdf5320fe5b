//! What jobs need and workers have, by name.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One thing that a job needs: two keys that are equal mean the same thing, on whichever machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum NeedKey {
    /// A class of nodes, by its id.
    Class(Arc<str>),
    /// A model file, by its folder and its name there, which mean the same on every machine.
    Model { folder: Arc<str>, name: Arc<str> },
    /// Weight files of this machine, by their paths.
    Files(Arc<[PathBuf]>),
}

impl NeedKey {
    pub fn class(id: &str) -> Self {
        Self::Class(id.into())
    }

    pub fn model(folder: &str, name: &str) -> Self {
        Self::Model {
            folder: folder.into(),
            name: name.into(),
        }
    }

    pub fn files(paths: &[PathBuf]) -> Self {
        Self::Files(paths.into())
    }
}

/// As a person reads it: the name of a model in its folder, the paths of files.
impl fmt::Display for NeedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(id) => write!(f, "the node {id}"),
            Self::Model { folder, name } => write!(f, "{folder}/{name}"),
            Self::Files(paths) => {
                let names: Vec<_> = paths
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

/// As messages between our own processes have it.
impl From<NeedKey> for String {
    fn from(key: NeedKey) -> Self {
        match key {
            NeedKey::Class(id) => format!("class:{id}"),
            NeedKey::Model { folder, name } => format!("model:{folder}/{name}"),
            NeedKey::Files(paths) => {
                let lines = paths.iter().map(|path| path.to_string_lossy().into_owned());
                lines.collect::<Vec<_>>().join("\n")
            }
        }
    }
}

/// What is neither a class nor a model is files, one a line.
impl From<String> for NeedKey {
    fn from(text: String) -> Self {
        let model = |rest: &str| {
            let (folder, name) = rest.split_once('/')?;
            Some(Self::model(folder, name))
        };
        if let Some(id) = text.strip_prefix("class:") {
            return Self::class(id);
        }
        let found = text.strip_prefix("model:").and_then(model);
        found.unwrap_or_else(|| Self::Files(text.lines().map(PathBuf::from).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_travel_as_text() {
        for (key, text) in [
            (NeedKey::class("KSampler"), "class:KSampler"),
            (NeedKey::model("loras", "s/l.pt"), "model:loras/s/l.pt"),
            (NeedKey::files(&["/a".into(), "/b c".into()]), "/a\n/b c"),
        ] {
            assert_eq!(String::from(key.clone()), text);
            assert_eq!(NeedKey::from(text.to_owned()), key);
        }
    }
}
