//! What a LoRA for pictures and videos to go by says about them.

use fresco_graph::{
    Cx, FromValue, Node, NodeError, NodeOutput, NodeResult, Opaque, Output, Pieces, Value,
    wrong_kind,
};

use crate::sampling::Model;

/// Where a LoRA says how much smaller its references are than the video.
const SMALLER: &str = "reference_downscale_factor";

/// More than any reference is smaller.
const MOST: f64 = 64.0;

/// IC_LORA_PARAMETERS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InContext {
    /// By what the sides of references are divided.
    pub(crate) smaller: usize,
}

impl Opaque for InContext {
    fn describe(&self) -> String {
        format!("references, each side divided by {}", self.smaller)
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn pieces(&self, _: &mut Pieces) {}
}

impl FromValue for InContext {
    const IO: &'static str = "IC_LORA_PARAMETERS";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .copied()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<InContext> for Value {
    fn from(parameters: InContext) -> Self {
        Self::object(parameters)
    }
}

/// Reads from a model's last LoRA how pictures and videos that it goes by are to be given.
#[derive(Node)]
#[node(
    id = "GetICLoRAParameters",
    v3,
    module = "comfy_extras.nodes_lt",
    display = "Get IC-LoRA Parameters",
    category = "conditioning/video_models",
    outputs(Output::new("IC_LORA_PARAMETERS").named("iclora_parameters"))
)]
pub(super) struct GetIcLoraParameters {
    /// A model right after its LoRA.
    iclora_model: Model,
}

impl Node for GetIcLoraParameters {
    fn run(self, _: &Cx) -> NodeResult {
        let smaller = match self.iclora_model.lora_note(SMALLER) {
            None => 1,
            Some(said) => {
                let number = said.trim().parse::<f64>().ok();
                let number = number.filter(|n| n.is_finite() && *n <= MOST);
                let number = number.ok_or_else(|| {
                    NodeError::value_error(format!(
                        "the LoRA says that its references are {said:?} times smaller, which is not a number up to {MOST}"
                    ))
                })?;
                number.round_ties_even().max(1.0) as usize
            }
        };
        Ok(NodeOutput::one(InContext { smaller }))
    }
}
