//! What full-size models are made of, for those who make them up.

pub mod list;
