//! What vision encoders give and take: the boundary to the model room.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Pieces, Value,
    entry, wrong_kind,
};
use fresco_memory::Handle;
use fresco_tensor::Tensor;

use crate::types::{Image, as_tensor};

pub static NODES: &[NodeEntry] = &[entry::<ClipVisionEncode>()];

/// A vision encoder. `crop` asks for the middle square instead of a distorted picture.
pub trait VisionModel: Send + Sync {
    /// Features of `(batch, h, w, 3)`: at least `image_embeds`, `last_hidden_state`, `penultimate_hidden_states`.
    fn encode(&self, image: &Tensor, crop: bool, cx: &Cx) -> Result<VisionOutput, NodeError>;

    /// Its weights' handle, where the memory room has them.
    fn handle(&self) -> Option<&Handle> {
        None
    }
}

/// CLIP_VISION on a link.
#[derive(Clone)]
pub struct Vision(pub Arc<dyn VisionModel>);

impl Opaque for Vision {
    fn describe(&self) -> String {
        "a vision encoder".into()
    }
}

impl FromValue for Vision {
    const IO: &'static str = "CLIP_VISION";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("CLIP_VISION", &value))
    }
}

impl From<Vision> for Value {
    fn from(vision: Vision) -> Self {
        Self::object(vision)
    }
}

/// CLIP_VISION_OUTPUT: tensors by name.
#[derive(Clone)]
pub struct VisionOutput(pub Arc<Map>);

impl VisionOutput {
    pub fn tensor(&self, key: &str) -> Result<&Tensor, NodeError> {
        self.0.get(key).and_then(as_tensor).ok_or_else(|| {
            NodeError::failed("AttributeError", format!("the vision output has no {key}"))
        })
    }
}

impl Opaque for VisionOutput {
    fn describe(&self) -> String {
        let keys: Vec<&str> = self.0.keys().map(|k| &**k).collect();
        format!("vision output ({})", keys.join(", "))
    }

    fn bytes(&self) -> u64 {
        self.0.values().map(Value::bytes).sum()
    }

    fn pieces(&self, pieces: &mut Pieces) {
        self.0.values().for_each(|v| pieces.add_value(v));
    }
}

impl FromValue for VisionOutput {
    const IO: &'static str = "CLIP_VISION_OUTPUT";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("CLIP_VISION_OUTPUT", &value))
    }
}

impl From<VisionOutput> for Value {
    fn from(output: VisionOutput) -> Self {
        Self::object(output)
    }
}

/// Lets a vision encoder look at a picture.
#[derive(Node)]
#[node(
    id = "CLIPVisionEncode",
    v1,
    module = "nodes",
    display = "CLIP Vision Encode",
    category = "conditioning",
    outputs("CLIP_VISION_OUTPUT")
)]
pub struct ClipVisionEncode {
    clip_vision: Vision,
    image: Image,
    /// Look at the middle square, or at the whole picture squeezed into one.
    #[input(choices = ["center", "none"])]
    crop: String,
}
impl Node for ClipVisionEncode {
    fn run(self, cx: &Cx) -> NodeResult {
        let crop = self.crop == "center";
        Ok(NodeOutput::one(self.clip_vision.0.encode(
            &self.image.0,
            crop,
            cx,
        )?))
    }
}
