//! LoRA and its relatives: small files that change the weights of a large model.
//!
//! [`LoraFile`] reads one, [`NameMap`] says which weight a name in it means, [`Adapter`] is the change of one weight and
//! knows its arithmetic. [`load`] brings them together into patches for [`crate::patch::PatchSet`].

mod adapter;
mod convert;
mod diffusers;
mod extract;
mod file;
mod merge;
mod names;

pub use adapter::{Adapter, Kind};
pub use extract::extract;
pub use file::{Loaded, LoraFile, LoraProblem, load};
pub use names::NameMap;

pub(crate) use merge::{How, padded, reordered};
