//! UI workflow to API prompt: what the editor saves, flattened to what the engine runs.
//!
//! The rules are those of front-end 1.35.9. Everything here reads a file a stranger wrote:
//! a wrong type is skipped with a warning, sizes are bounded, nothing recurses with the input.
//!
//! ```
//! use fresco_graph::{json, ui};
//! let info = json::parse(r#"{"Const": {"input": {"required": {"value": ["INT", {"default": 1}]}}, "output": ["INT"]}}"#)?;
//! let file = json::parse(r#"{"nodes": [{"id": 3, "type": "Const", "widgets_values": [7]}], "links": []}"#)?;
//! let done = ui::convert(&file, &ui::NodeDefs::new(&info), &ui::Options::default()).expect("it is well formed");
//! assert_eq!(json::to_string(&done.prompt["3"]), r#"{"inputs":{"value":7},"class_type":"Const","_meta":{"title":"Const"}}"#);
//! # Ok::<(), json::JsonError>(())
//! ```

mod convert;
mod defs;
mod file;
mod group;
mod options;
mod parse;
mod promote;
mod resolve;
mod rewrite;
mod room;
mod values;
mod widgets;

pub use convert::{Converted, WorkflowKind, convert, detect, prompt_of};
pub use defs::NodeDefs;
pub use file::{Workflow, read, read_texts};
pub use options::{ConvertError, MAX_DEPTH, Now, Options};
