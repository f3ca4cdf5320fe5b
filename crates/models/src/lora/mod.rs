//! LoRA and its relatives: small files that change the weights of a large model.
//!
//! [`LoraFile`] reads one, [`NameMap`] says which weight a name in it means, [`Adapter`] is the change of one weight and
//! knows its arithmetic. [`load`] brings them together into patches for [`crate::patch::PatchSet`].

mod adapter;
pub(crate) mod convert;
mod extract;
pub(crate) mod families;
pub(crate) mod file;
mod merge;
mod names;
mod network_keys;

pub use adapter::{Adapter, Factor, Kind};
pub use extract::extract;
pub use file::{Loaded, LoraFile, LoraProblem, load};
pub use names::{AddTextNames, LoraLayout, LoraNames, NameMap, Spelling, TextKeys};
pub use network_keys::NetworkKeys;

pub(crate) use merge::{How, padded, reordered};
