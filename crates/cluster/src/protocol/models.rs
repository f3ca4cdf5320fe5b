//! Requests about model files, and the copies of those between machines.

use serde::{Deserialize, Serialize};

use crate::content::ModelEntry;
use crate::objects::ContentHash;

/// A file to copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub folder: String,
    pub name: String,
}

/// To a machine that has model files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelRequest {
    /// All model files.
    List,
    /// One file, hashed where that is quick.
    Describe(Wanted),
    /// Put a part of a file into the object store.
    Part { file: Wanted, offset: u64 },
    /// Begin to copy files of another machine.
    Copy {
        from: String,
        files: Vec<Wanted>,
        replace: bool,
    },
    /// Say how far a copy is.
    Progress { copy: u64 },
}

/// From that machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelAnswer {
    List(Vec<ModelEntry>),
    Entry(ModelEntry),
    Part { hash: ContentHash },
    Copy { copy: u64 },
    Progress(Vec<CopyProgress>),
}

/// How far the copy of a file is.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CopyProgress {
    pub done: u64,
    pub size: u64,
    /// None while it goes on.
    pub end: Option<CopyEnd>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyEnd {
    Copied,
    /// It was there with the same content.
    There,
    Failed(String),
}
