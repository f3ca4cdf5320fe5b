//! Texts as files.

use std::sync::Arc;

use fresco_files::dirs::DirType;
use fresco_graph::json::{self, PYTHON, Style};
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, map};

use super::{begin, entry_of, save_error};

/// Saves a text in the output folder, and passes it on.
#[derive(Node)]
#[node(
    id = "SaveText",
    v3,
    module = "comfy_extras.nodes_text",
    display = "Save Text",
    category = "utils/string",
    outputs(Output::new("STRING").named("text")),
    output_node
)]
pub(super) struct SaveText {
    /// The text to save.
    #[input(forceInput = true)]
    text: Arc<str>,
    #[input(optional, or = "ComfyUI".to_owned(), default = "ComfyUI")]
    filename_prefix: String,
    /// The ending of the file. JSON is indented if it is well formed.
    #[input(optional, or = "txt".to_owned(), default = "txt", choices = ["txt", "csv", "md", "json"])]
    format: String,
}

impl Node for SaveText {
    fn run(self, cx: &Cx) -> NodeResult {
        if !matches!(&*self.format, "txt" | "csv" | "md" | "json") {
            return Err(NodeError::value_error(format!(
                "a text cannot be saved as {:?}",
                self.format
            )));
        }
        let indented = match json::parse(&self.text) {
            Ok(value) if self.format == "json" => {
                let mut out = String::new();
                let style = Style {
                    indent: Some(2),
                    ascii: false,
                    ..PYTHON
                };
                json::write(&mut out, &value, style);
                Some(out)
            }
            _ => None,
        };
        let bytes = indented.as_deref().unwrap_or(&self.text).as_bytes();
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, 0, 0)?;
        let saved = batch
            .save_numbered(&self.format, bytes)
            .map_err(save_error)?;
        let entries = vec![entry_of(&saved, DirType::Output)];
        Ok(NodeOutput::one(self.text).with_ui(map! {"files" => entries}))
    }
}
