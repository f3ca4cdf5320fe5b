//! Built-in nodes and their list.

use fresco_graph::NodeEntry;

pub mod conditioning;
pub mod hooks;
pub mod latent;
mod python_rules;
pub mod types;

/// Every native class. One line per family; the order is that of `/object_info`.
pub fn all() -> Vec<NodeEntry> {
    let families: &[&[NodeEntry]] = &[latent::NODES, conditioning::NODES, hooks::NODES];
    families.concat()
}
