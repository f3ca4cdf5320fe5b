//! Single values with a widget.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeEntry, NodeOutput, NodeResult, Output, entry};

pub static NODES: &[NodeEntry] = &[
    entry::<PrimitiveString>(),
    entry::<PrimitiveStringMultiline>(),
    entry::<PrimitiveInt>(),
    entry::<PrimitiveFloat>(),
    entry::<PrimitiveBoolean>(),
    entry::<SeedNode>(),
];

/// A line of text.
#[derive(Node)]
#[node(
    id = "PrimitiveString",
    v3,
    module = "comfy_extras.nodes_primitive",
    display = "String",
    category = "utils/primitive",
    outputs("STRING")
)]
pub struct PrimitiveString {
    /// The text.
    value: Arc<str>,
}

impl Node for PrimitiveString {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// A text of several lines.
#[derive(Node)]
#[node(
    id = "PrimitiveStringMultiline",
    v3,
    module = "comfy_extras.nodes_primitive",
    display = "String (Multiline)",
    category = "utils/primitive",
    outputs("STRING")
)]
pub struct PrimitiveStringMultiline {
    /// The text, of any number of lines.
    #[input(multiline = true)]
    value: Arc<str>,
}

impl Node for PrimitiveStringMultiline {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// A whole number.
#[derive(Node)]
#[node(
    id = "PrimitiveInt",
    v3,
    module = "comfy_extras.nodes_primitive",
    display = "Int",
    category = "utils/primitive",
    outputs("INT")
)]
pub struct PrimitiveInt {
    /// The whole number.
    #[input(min = -i64::MAX, max = i64::MAX, control_after_generate = true)]
    value: i128,
}

impl Node for PrimitiveInt {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// A number.
#[derive(Node)]
#[node(
    id = "PrimitiveFloat",
    v3,
    module = "comfy_extras.nodes_primitive",
    display = "Float",
    category = "utils/primitive",
    outputs("FLOAT")
)]
pub struct PrimitiveFloat {
    /// The number.
    #[input(min = -i64::MAX, max = i64::MAX, step = 0.1)]
    value: f64,
}

impl Node for PrimitiveFloat {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// Yes or no.
#[derive(Node)]
#[node(
    id = "PrimitiveBoolean",
    v3,
    module = "comfy_extras.nodes_primitive",
    display = "Boolean",
    category = "utils/primitive",
    outputs("BOOLEAN")
)]
pub struct PrimitiveBoolean {
    /// On or off.
    value: bool,
}

impl Node for PrimitiveBoolean {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// A seed for several nodes at once.
#[derive(Node)]
#[node(
    id = "SeedNode",
    v3,
    module = "comfy_extras.nodes_primitive",
    display = "Seed",
    category = "utils/primitive",
    outputs(Output::new("INT").named("seed"))
)]
pub struct SeedNode {
    /// The seed: samplers that share it draw the same noise.
    #[input(default = 0, min = 0, max = i64::MAX, control_after_generate = "fixed")]
    seed: i64,
}

impl Node for SeedNode {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.seed))
    }
}
