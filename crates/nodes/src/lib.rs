//! Built-in nodes and their list.

use fresco_graph::NodeEntry;

mod compositing;
pub mod conditioning;
pub mod hooks;
mod image;
pub mod latent;
mod mask;
mod python_rules;
pub mod text;
pub mod types;

/// Every native class. One line per family; the order is that of `/object_info`.
pub fn all() -> Vec<NodeEntry> {
    let families: &[&[NodeEntry]] = &[
        image::NODES,
        mask::NODES,
        compositing::NODES,
        latent::NODES,
        conditioning::NODES,
        hooks::NODES,
        text::NODES,
    ];
    families.concat()
}
