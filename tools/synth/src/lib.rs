//! What full-size models are made of, for those who make them up.

pub mod full;
pub mod list;
