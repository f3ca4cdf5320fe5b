//! The loaders of the GGUF extension. Fresco reads that format everywhere; these are its names for it.

use std::marker::PhantomData;

use fresco_graph::{
    Args, Choices, Cx, Form, Input, Node, NodeError, NodeOutput, NodeResult, NodeSchema, Output,
    Schema, Value,
};

use super::bases::{self, Base};
use crate::loaders::load_diffusion_model;
use crate::resident::LoadOptions;

const MODULE: &str = "custom_nodes.ComfyUI-GGUF";
const DTYPES: [&str; 5] = ["default", "target", "float32", "float16", "bfloat16"];

pub(super) type UnetLoaderGguf = Plain<bases::UnetGguf>;
pub(super) type UnetLoaderGgufAdvanced = Plain<bases::UnetGgufAdvanced>;
pub(super) type ClipLoaderGguf = Plain<bases::ClipGguf>;
pub(super) type DualClipLoaderGguf = Plain<bases::DualClipGguf>;
pub(super) type TripleClipLoaderGguf = Plain<bases::TripleClipGguf>;
pub(super) type QuadrupleClipLoaderGguf = Plain<bases::QuadrupleClipGguf>;

pub(super) fn unet_input() -> Input {
    Input::combo("unet_name", Choices::Listed("gguf/diffusion_models".into()))
}

/// Weights are always taken apart to 32 bits where they are used, so these choices have no effect; workflows have them.
pub(super) fn advanced_inputs() -> Vec<Input> {
    let note = "Accepted for workflows that have it; Fresco always computes with 32 bits.";
    let dtypes: Vec<Value> = DTYPES.map(Value::from).into();
    let dtype = |name: &str| {
        Input::combo(name, Choices::Fixed(dtypes.clone().into()))
            .option("default", "default")
            .tooltip(note)
    };
    vec![
        unet_input(),
        dtype("dequant_dtype"),
        dtype("patch_dtype"),
        Input::new("patch_on_device", "BOOLEAN")
            .option("default", false)
            .tooltip(note),
    ]
}

pub(super) fn load(args: &mut Args, options: LoadOptions, cx: &Cx) -> NodeResult {
    let name: String = args.take("unet_name")?;
    Ok(NodeOutput::one(load_diffusion_model(
        cx, &name, "default", &options,
    )?))
}

/// A loader of the extension without inputs of a family.
pub(super) struct Plain<B> {
    args: Args,
    marker: PhantomData<fn() -> B>,
}

impl<B: Base> NodeSchema for Plain<B> {
    fn schema() -> Schema {
        let loader = B::LOADER;
        let schema = Schema::new(loader.id, Form::V1)
            .module(MODULE)
            .category("bootleg")
            .display_name(loader.title)
            .description(loader.about);
        let inputs = (loader.inputs)().into_iter();
        let schema = inputs.fold(schema, Schema::input);
        let outputs = loader.outputs.iter();
        outputs.fold(schema, |schema, ty| schema.output(Output::new(ty)))
    }

    fn from_args(args: Args) -> Result<Self, NodeError> {
        Ok(Self {
            args,
            marker: PhantomData,
        })
    }
}

impl<B: Base> Node for Plain<B> {
    fn run(mut self, cx: &Cx) -> NodeResult {
        (B::LOADER.load)(&mut self.args, LoadOptions::default(), cx)
    }
}
