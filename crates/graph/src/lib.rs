//! Schema, prompt, validation, order, cache keys, the node trait. Pure: no I/O, no tensor, no threads.
//!
//! ```
//! use fresco_graph::{Cx, Node, NodeOutput, NodeResult, entry};
//!
//! /// Doubles a number.
//! #[derive(Node)]
//! #[node(id = "Double", outputs("INT"))]
//! struct Double {
//!     #[input(default = 1, min = 0)]
//!     value: i64,
//! }
//! impl Node for Double {
//!     fn run(self, _: &Cx) -> NodeResult {
//!         Ok(NodeOutput::one(self.value * 2))
//!     }
//! }
//! let class = entry::<Double>().class();
//! assert_eq!(&*class.schema().id, "Double");
//! assert_eq!(&*class.schema().description, "Doubles a number.");
//! ```

// The derive writes `::fresco_graph::...`; this lets it work inside this crate's own tests too.
extern crate self as fresco_graph;

mod cancel;
mod codec;
mod dynamic;
mod entry;
pub mod json;
pub mod mapping;
mod missing;
mod node;
pub mod object_info;
mod order;
mod registry;
mod schema;
mod signature;
mod sync;
pub mod typed;
mod types;
pub mod ui;
mod validate;
mod value;

pub use cancel::{CancelToken, CancelWatch};
pub use codec::{Codec, CodecError, Parts, ValueCodec};
pub use dynamic::Declared;
pub use entry::{NodeEntry, NodeRow, SharedTooltips, Twin, entry, row, rows};
pub use fresco_graph_macros::Node;
pub use missing::{
    Missing, MissingFile, MissingModel, MissingNode, file_name, missing, model_sources,
};
pub use node::*;
pub use order::{Next, Nodes, Order};
pub use registry::{NodeRegistry, PromptClass, PromptClasses};
pub use schema::*;
pub use signature::{CacheKey, Contribution, Contributions, Keys};
pub use sync::lock;
pub use types::{CoerceError, coerce, types_match};
pub use validate::*;
pub use value::*;
