//! Vector drawings.

use std::sync::Arc;

use fresco_files::dirs::DirType;
use fresco_graph::json::{PYTHON, Style, write};
use fresco_graph::{
    Cx, Node, NodeError, NodeOutput, NodeResult, Opaque, Pieces, Value, map, wrong_kind,
};

use super::{Presence, begin, entry_of, metadata_values, save_error};

/// Drawings on a link, each the text of a file.
pub struct Svg(pub Vec<Arc<str>>);

impl Opaque for Svg {
    fn describe(&self) -> String {
        format!("{} SVG drawings", self.0.len())
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|s| s.len() as u64).sum()
    }

    fn pieces(&self, pieces: &mut Pieces) {
        for drawing in &self.0 {
            pieces.add(drawing.as_ptr() as usize, drawing.len() as u64);
        }
    }
}

/// Saves vector drawings, with the workflow in a metadata element.
#[derive(Node)]
#[node(
    id = "SaveSVGNode",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/save",
    output_node
)]
pub(super) struct SaveSvg {
    /// The drawings.
    #[input(ty = "SVG")]
    svg: Value,
    #[input(default = "svg/ComfyUI")]
    filename_prefix: String,
}

impl Node for SaveSvg {
    fn run(self, cx: &Cx) -> NodeResult {
        let svg = self
            .svg
            .downcast::<Svg>()
            .ok_or_else(|| NodeError::type_error(wrong_kind("SVG", &self.svg)))?;
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, 0, 0)?;
        let metadata = metadata_values(cx, Presence::NotEmpty)
            .filter(|m| !m.is_empty())
            .map(|m| {
                let mut text = String::new();
                let style = Style {
                    indent: Some(2),
                    ..PYTHON
                };
                write(&mut text, &m.into(), style);
                text
            });
        let mut entries = Vec::new();
        for drawing in &svg.0 {
            let text = match &metadata {
                Some(json) => with_metadata(drawing, json),
                None => drawing.to_string(),
            };
            let saved = batch.save("svg", text.as_bytes()).map_err(save_error)?;
            entries.push(entry_of(&saved, DirType::Output));
        }
        Ok(NodeOutput::ui(map! {"images" => entries}))
    }
}

/// The drawing with a metadata element after its opening tag; unchanged if it has no such tag.
fn with_metadata(drawing: &str, json: &str) -> String {
    let opening = drawing
        .find("<svg")
        .and_then(|start| Some(start + drawing[start..].find('>')? + 1));
    let Some(at) = opening else {
        return drawing.to_owned();
    };
    // The one sequence that would end the section early is split over two.
    let json = json.replace("]]>", "]]]]><![CDATA[>");
    let pad = " ".repeat(12);
    format!(
        "{}\n  <metadata>\n{pad}    <![CDATA[\n{pad}{json}\n{pad}    ]]>\n{pad}</metadata>\n{pad}{}",
        &drawing[..at],
        &drawing[at..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_goes_behind_the_first_tag_and_cannot_end_early() {
        let out = with_metadata("<?xml?><svg a=\"1\"><svg/></svg>", "\"]]>\"");
        assert!(out.starts_with("<?xml?><svg a=\"1\">\n  <metadata>"));
        assert_eq!(out.matches("<metadata>").count(), 1);
        assert!(out.contains("\"]]]]><![CDATA[>\""));
        assert_eq!(with_metadata("no drawing", "{}"), "no drawing");
    }
}
