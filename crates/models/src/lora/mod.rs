//! LoRA and its relatives: small files that change the weights of a large model.
//!
//! [`LoraFile`] reads one, [`NameMap`] says which weight a name in it means, [`Adapter`] is the change of one weight and
//! knows its arithmetic. [`load`] brings them together into patches for [`crate::patch::PatchSet`].

mod adapter;
pub(crate) mod convert;
mod extract;
pub(crate) mod families;
pub(crate) mod file;
mod layer_table;
mod merge;
mod names;

pub use adapter::{Adapter, Factor, Kind};
pub use extract::extract;
pub use file::{Loaded, LoraFile, LoraProblem, load};
pub use layer_table::{LayerTable, NetworkKeys, Part, Row};
pub use names::{AddNames, AddTextNames, NameMap, Spelling, TextKeys};

pub(crate) use merge::{How, padded, reordered};
