//! Files between machines: which models each has, what a prompt reads and what it makes, all known by content.
//!
//! Models stay where they are ([`Catalogue`] says what is there, [`ClusterModels`] joins what all workers say, [`sync`] copies on
//! demand). What a prompt reads goes to the worker and what it makes comes back ([`Transfer`]), through an object store or, if it
//! is small, in the messages themselves. Whoever receives bytes hashes them: a name from elsewhere never says what is in a file.

mod catalogue;
mod memo;
mod models;
mod names;
mod objects;
mod sweep;
pub mod sync;
mod transfer;

pub use catalogue::{Catalogue, ModelEntry};
pub use models::{ClusterModels, model_key, neutral_view};
pub use names::{NamedFile, named_inputs, named_outputs};
pub use objects::{FolderObjects, Objects, WritePiece};
pub(crate) use sweep::{Removed, remove_old, remove_oldest};
pub use transfer::{ContentError, FileRef, Renames, Transfer};
