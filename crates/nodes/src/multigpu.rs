//! Loaders that are told where to put a model: the nodes of the MultiGPU extension, built in.
//!
//! Every loader of Fresco appears again with the inputs of a family of nodes behind its own: a device to compute on
//! (`…MultiGPU`), or a placement over several devices (`…DisTorch2MultiGPU`, and `…DisTorchMultiGPU` as older workflows
//! have it). One generic node makes them all from two tables.

pub(crate) mod advanced;
pub(crate) mod bases;
pub(crate) mod family;
mod gguf;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use fresco_graph::{
    Args, Cx, Form, Map, Node, NodeEntry, NodeError, NodeResult, NodeSchema, Output, Schema,
    Validator, Verdict, entry,
};

use bases::Base;
use family::{DisTorch2, Legacy, LoaderForm, OnDevice};

pub static NODES: &[NodeEntry] = &[
    entry::<gguf::UnetLoaderGguf>(),
    entry::<gguf::UnetLoaderGgufAdvanced>(),
    entry::<gguf::ClipLoaderGguf>(),
    entry::<gguf::DualClipLoaderGguf>(),
    entry::<gguf::TripleClipLoaderGguf>(),
    entry::<gguf::QuadrupleClipLoaderGguf>(),
    entry::<advanced::DeviceSelector>(),
    entry::<Placed<bases::Unet, OnDevice>>(),
    entry::<Placed<bases::Vae, OnDevice>>(),
    entry::<Placed<bases::Clip, OnDevice>>(),
    entry::<Placed<bases::DualClip, OnDevice>>(),
    entry::<Placed<bases::TripleClip, OnDevice>>(),
    entry::<Placed<bases::QuadrupleClip, OnDevice>>(),
    entry::<Placed<bases::ClipVision, OnDevice>>(),
    entry::<Placed<bases::Checkpoint, OnDevice>>(),
    entry::<Placed<bases::ControlNet, OnDevice>>(),
    entry::<Placed<bases::DiffControlNet, OnDevice>>(),
    entry::<Placed<bases::Diffusers, OnDevice>>(),
    entry::<Placed<bases::UnetGguf, OnDevice>>(),
    entry::<Placed<bases::UnetGgufAdvanced, OnDevice>>(),
    entry::<Placed<bases::ClipGguf, OnDevice>>(),
    entry::<Placed<bases::DualClipGguf, OnDevice>>(),
    entry::<Placed<bases::TripleClipGguf, OnDevice>>(),
    entry::<Placed<bases::QuadrupleClipGguf, OnDevice>>(),
    entry::<advanced::CheckpointAdvanced>(),
    entry::<advanced::CheckpointAdvancedDisTorch2>(),
    entry::<advanced::UnetLowPrecision>(),
    entry::<Placed<bases::Unet, DisTorch2>>(),
    entry::<Placed<bases::Vae, DisTorch2>>(),
    entry::<Placed<bases::Clip, DisTorch2>>(),
    entry::<Placed<bases::DualClip, DisTorch2>>(),
    entry::<Placed<bases::TripleClip, DisTorch2>>(),
    entry::<Placed<bases::QuadrupleClip, DisTorch2>>(),
    entry::<Placed<bases::ClipVision, DisTorch2>>(),
    entry::<Placed<bases::Checkpoint, DisTorch2>>(),
    entry::<Placed<bases::ControlNet, DisTorch2>>(),
    entry::<Placed<bases::DiffControlNet, DisTorch2>>(),
    entry::<Placed<bases::Diffusers, DisTorch2>>(),
    entry::<Placed<bases::UnetGguf, DisTorch2>>(),
    entry::<Placed<bases::UnetGgufAdvanced, DisTorch2>>(),
    entry::<Placed<bases::ClipGguf, DisTorch2>>(),
    entry::<Placed<bases::DualClipGguf, DisTorch2>>(),
    entry::<Placed<bases::TripleClipGguf, DisTorch2>>(),
    entry::<Placed<bases::QuadrupleClipGguf, DisTorch2>>(),
    entry::<Placed<bases::UnetGguf, Legacy>>(),
    entry::<Placed<bases::UnetGgufAdvanced, Legacy>>(),
    entry::<Placed<bases::ClipGguf, Legacy>>(),
    entry::<Placed<bases::DualClipGguf, Legacy>>(),
    entry::<Placed<bases::TripleClipGguf, Legacy>>(),
    entry::<Placed<bases::QuadrupleClipGguf, Legacy>>(),
];

/// What these classes call their origin: workflows and the editor know it by this name.
const MODULE: &str = "custom_nodes.ComfyUI-MultiGPU";

/// One loader with the inputs of one family.
struct Placed<B, F> {
    args: Args,
    marker: PhantomData<fn() -> (B, F)>,
}

impl<B: Base, F: LoaderForm> NodeSchema for Placed<B, F> {
    fn schema() -> Schema {
        let loader = B::LOADER;
        let mut schema = Schema::new(&format!("{}{}", loader.id, F::SUFFIX), Form::V1)
            .module(MODULE)
            .category(F::CATEGORY)
            .description(&format!("{} {}", loader.about, F::ABOUT));
        if let Some(title) = F::TITLE {
            schema = schema.display_name(&format!("{}{title}", loader.title));
        }
        for input in (loader.inputs)().into_iter().chain(F::inputs(&loader)) {
            schema = schema.input(input);
        }
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

impl<B: Base, F: LoaderForm> Node for Placed<B, F> {
    fn run(mut self, cx: &Cx) -> NodeResult {
        let loader = B::LOADER;
        let options = F::options(&loader, &mut self.args, &family::Known::of(cx))?;
        (loader.load)(&mut self.args, options, cx)
    }

    const VALIDATOR: Option<Validator> = F::VALIDATOR;

    fn validate(args: Args, _: &Map, cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(family::check_expert(
            &args,
            F::VALIDATOR.map_or(&[], |v| v.params),
            cx,
        ))
    }
}
