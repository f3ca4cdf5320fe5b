//! Nodes that show one behaviour each.

use std::sync::mpsc;
use std::time::Duration;

use fresco_graph::*;

/// A number.
#[derive(Node)]
#[node(id = "Number", v1, outputs("INT"))]
pub struct Number {
    #[input(default = 0, min = 0, max = 1000)]
    value: i64,
}
impl Node for Number {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// Shows a value the way savers show pictures.
#[derive(Node)]
#[node(id = "Show", v1, output_node)]
pub struct Show {
    #[input(ty = "*")]
    value: Value,
}
impl Node for Show {
    fn run(self, _: &Cx) -> NodeResult {
        let name = format!("{}.png", json::python_text(&self.value));
        let image = map! {"filename" => name, "subfolder" => "", "type" => "output"};
        Ok(NodeOutput::ui(map! {"images" => vec![Value::from(image)]}))
    }
}

/// Always fails.
#[derive(Node)]
#[node(id = "Fail", v1, output_node)]
pub struct Fail {
    #[input(ty = "*")]
    #[expect(dead_code, reason = "the node fails before")]
    value: Value,
}
impl Node for Fail {
    fn run(self, _: &Cx) -> NodeResult {
        Err(NodeError::value_error("as asked"))
    }
}

/// Runs until it is interrupted.
#[derive(Node)]
#[node(id = "Wait", v1, output_node, not_idempotent)]
pub struct Wait {
    #[input(ty = "*")]
    #[expect(dead_code, reason = "only there to be waited for")]
    value: Value,
}
impl Node for Wait {
    fn run(self, cx: &Cx) -> NodeResult {
        let (_never, waiting) = mpsc::channel::<()>();
        loop {
            cx.check_interrupt()?;
            let _ = waiting.recv_timeout(Duration::from_millis(1));
        }
    }
}

/// Moves a progress bar, with a picture.
#[derive(Node)]
#[node(id = "Steps", v1, output_node)]
pub struct Steps {
    #[input(ty = "INT")]
    count: i64,
    #[input(default = false)]
    png: bool,
    #[input(optional)]
    bytes: Option<i64>,
}
impl Node for Steps {
    fn run(self, cx: &Cx) -> NodeResult {
        let format = if self.png {
            PreviewFormat::Png
        } else {
            PreviewFormat::Jpeg
        };
        let bytes: std::sync::Arc<[u8]> = match self.bytes {
            None => (*b"picture").into(),
            Some(n) => vec![0; n as usize].into(),
        };
        for i in 0..self.count {
            let preview = Preview {
                format,
                bytes: bytes.clone(),
            };
            cx.progress(i as f64, self.count as f64, Some(preview))?;
        }
        Ok(NodeOutput::default())
    }
}

/// A combo that follows the disk.
#[derive(Node)]
#[node(id = "Pick", v1, outputs("STRING"))]
pub struct Pick {
    #[input(listed = "models/vae")]
    name: String,
}
impl Node for Pick {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.name))
    }
}

pub static NODES: &[NodeEntry] = &[
    entry::<Number>(),
    entry::<Show>(),
    entry::<Fail>(),
    entry::<Wait>(),
    entry::<Steps>(),
    entry::<Pick>(),
];
