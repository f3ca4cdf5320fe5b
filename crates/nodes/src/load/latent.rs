//! Saved latents.

use fresco_graph::{
    Args, Cx, Map, Node, NodeError, NodeOutput, NodeResult, Validator, Value, Verdict,
};
use fresco_tensor::SafeTensors;

use super::{file_token, file_verdict, io_error, resolve};
use crate::types::Latent;

/// Files without a version were saved scaled for the first models.
const OLD_SCALE: f32 = 1.0 / 0.18215;

/// Loads a latent that was saved before.
#[derive(Node)]
#[node(
    id = "LoadLatent",
    v1,
    module = "nodes",
    category = "_for_testing",
    outputs("LATENT")
)]
pub(super) struct LoadLatent {
    /// The latent's file in the input directory.
    #[input(listed = "input/latent")]
    latent: String,
}

impl Node for LoadLatent {
    fn run(self, cx: &Cx) -> NodeResult {
        let path = resolve(cx, &self.latent)?;
        std::fs::metadata(&path).map_err(|e| io_error(&path, &e))?;
        let file = SafeTensors::open(&path)?;
        let samples = file.tensor("latent_tensor")?;
        let samples = if file.info("latent_format_version_0").is_some() {
            samples
        } else {
            samples.mul_scalar(OLD_SCALE)
        };
        Ok(NodeOutput::one(Latent::new(samples)))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, cx: &Cx) -> Result<Value, NodeError> {
        file_token(cx, &args, "latent")
    }

    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["latent"],
        all: false,
        input_types: false,
    });
    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(file_verdict(cx, &args, "latent", "latent"))
    }
}
