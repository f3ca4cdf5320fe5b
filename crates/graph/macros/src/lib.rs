//! `#[derive(Node)]`.
