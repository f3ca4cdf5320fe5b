//! Style models: pictures as tokens of a prompt.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Value, entry,
    wrong_kind,
};
use fresco_memory::Need;
use fresco_models::detect::STYLE_NETS;
use fresco_models::network::Lazy;
use fresco_models::store::WeightStore;
use fresco_models::style::{BuildStyle, StyleNetwork, find};
use fresco_tensor::{Device, Dtype, Stored, Tensor};

use crate::loaders::WeightSource;
use crate::resident::{Component, Hold, InUse, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::run::failure;
use crate::types::{Cond, Conditioning, as_tensor, tensor};
use crate::vision::VisionOutput;

pub static NODES: &[NodeEntry] = &[entry::<StyleModelLoader>(), entry::<StyleModelApply>()];

type LazyStyle = Lazy<Box<dyn StyleNetwork>>;

struct LoadedStyle {
    network: Arc<LazyStyle>,
    hold: Arc<Hold>,
}

/// STYLE_MODEL on a link.
#[derive(Clone)]
pub struct StyleModel(Arc<LoadedStyle>);

impl Opaque for StyleModel {
    fn describe(&self) -> String {
        "a style model".into()
    }
}

impl FromValue for StyleModel {
    const IO: &'static str = "STYLE_MODEL";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("STYLE_MODEL", &value))
    }
}

impl From<StyleModel> for Value {
    fn from(style: StyleModel) -> Self {
        Self::object(style)
    }
}

/// Loads a model that turns pictures into tokens of a prompt.
#[derive(Node)]
#[node(
    id = "StyleModelLoader",
    v1,
    module = "nodes",
    display = "Load Style Model",
    category = "loaders",
    outputs("STYLE_MODEL")
)]
pub struct StyleModelLoader {
    /// The file of the style model.
    #[input(listed = "models/style_models")]
    style_model_name: String,
}

impl Node for StyleModelLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let source = WeightSource::find(cx, "style_models", &self.style_model_name)?;
        let key = source.key(Component::Style)?;
        let opened = registry(cx).open(&who(cx), &key, "StyleModel", || {
            let found = find(source.open()?, STYLE_NETS, Device::cpu());
            let (store, build) = found.map_err(failure)?;
            let network = network(&store, build);
            Ok::<_, NodeError>(SharedNetwork::new(network, (store, build)))
        })?;
        let shared = opened.shared;
        let options = LoadOptions::default();
        let hold = Hold::claim(cx, &shared, &opened.id, Component::Style, &options);
        let (store, build) = &shared.extra;
        let network = network(&store.on(hold.compute().clone()), *build);
        let network = shared.joined(network);
        Ok(NodeOutput::one(StyleModel(Arc::new(LoadedStyle {
            network,
            hold,
        }))))
    }
}

/// A network whose weights are packed when it is first used.
fn network(store: &Arc<WeightStore>, build: BuildStyle) -> LazyStyle {
    let own = Arc::clone(store);
    Lazy::new(vec![Arc::clone(store)], Box::new(move || build(&own)))
}

/// Adds to a prompt what a style model makes of a picture.
#[derive(Node)]
#[node(
    id = "StyleModelApply",
    v1,
    module = "nodes",
    display = "Apply Style Model",
    category = "conditioning/style_model",
    outputs("CONDITIONING")
)]
pub struct StyleModelApply {
    conditioning: Conditioning,
    /// The model that makes tokens of pictures.
    style_model: StyleModel,
    clip_vision_output: VisionOutput,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.001)]
    strength: f64,
    /// What the strength scales: the picture's tokens, or how much attention they get.
    #[input(choices = ["multiply", "attn_bias"])]
    strength_type: String,
}

impl Node for StyleModelApply {
    fn run(self, cx: &Cx) -> NodeResult {
        let style = &self.style_model.0;
        let seen = self.clip_vision_output.tensor("last_hidden_state")?;
        let in_use = InUse::of(cx, &[style.hold.handle()], Need::default())?;
        let tokens = in_use.run(|| style.network.get()?.tokens(seen));
        let tokens = tokens.map_err(failure)?;
        let [b, n, width] = tokens.dims3()?;
        let mut tokens = tokens.reshape([1, b * n, width])?;
        let bias = self.strength_type == "attn_bias";
        if !bias {
            tokens = tokens.mul_scalar(self.strength as f32);
        }
        let bias = if bias { self.strength.ln() } else { 0.0 };
        let entries = self.conditioning.0.into_iter();
        let entries = entries.map(|cond| with_tokens(cond, &tokens, bias));
        Ok(NodeOutput::one(Conditioning(
            entries.collect::<Result<_, _>>()?,
        )))
    }
}

/// A condition with more tokens, which get more or less attention than its own.
fn with_tokens(mut cond: Cond, tokens: &Tensor, bias: f64) -> Result<Cond, NodeError> {
    let text = cond.tensor()?.clone();
    let [batch, count, _] = text.dims3()?;
    let mask = cond.options.get("attention_mask").and_then(as_tensor);
    let mask = mask.filter(|mask| mask.rank() == 3).cloned();
    if mask.is_some() || bias != 0.0 {
        let shape = cond.options.get("attention_mask_img_shape").cloned();
        let shape = shape.unwrap_or_else(|| vec![Value::from(1), Value::from(1)].into());
        let cells = shape.as_list().unwrap_or_default().iter();
        let cells = cells
            .filter_map(Value::as_int)
            .fold(1, i128::saturating_mul)
            .clamp(1, MOST_CELLS) as usize;
        let grown = grown_mask(mask.as_ref(), batch, [count, tokens.dim(1)?, cells], bias)?;
        cond.options.insert("attention_mask".into(), tensor(grown));
        cond.options
            .insert("attention_mask_img_shape".into(), shape);
    }
    let tokens = fresco_tensor::repeat_to_batch(tokens, batch)?;
    cond.tokens = tensor(Tensor::cat(&[&text, &tokens], 1)?);
    Ok(cond)
}

/// Places of a picture that a mask may speak of.
const MOST_CELLS: i128 = 1 << 14;

/// A mask over text and picture with new tokens between them.
fn grown_mask(
    mask: Option<&Tensor>,
    batch: usize,
    [text, new, picture]: [usize; 3],
    bias: f64,
) -> Result<Tensor, NodeError> {
    let (old, all) = (text + picture, text + new + picture);
    let mut grown = Tensor::zeros([batch, all, all])?;
    if let Some(mask) = mask {
        if mask.shape()[1..] != [old, old] {
            return Err(NodeError::value_error(format!(
                "the attention mask of the conditioning has shape {:?}; {old} by {old} tokens were expected",
                mask.shape()
            )));
        }
        let mask = fresco_tensor::repeat_to_batch(mask, batch)?;
        for (row, to_row, rows) in [(0, 0, text), (text, text + new, picture)] {
            for (column, to_column, columns) in [(0, 0, text), (text, text + new, picture)] {
                let part = mask.narrow(1, row, rows)?.narrow(2, column, columns)?;
                grown.paste(&[0, to_row, to_column], &part)?;
            }
        }
    }
    // Sixteen bits, as the reference keeps it.
    let bias = Stored::from_f32(&Tensor::scalar(bias as f32), Dtype::F16)?;
    let bias = bias.to_f32()?.item()?;
    for (row, rows) in [(0, text), (text + new, picture)] {
        let part = Tensor::full([batch, rows, new], bias)?;
        grown.paste(&[0, row, text], &part)?;
    }
    Ok(grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_tokens_get_the_bias_from_all_others() {
        let mask = grown_mask(None, 1, [2, 3, 1], 0.5f64.ln()).unwrap();
        assert_eq!(mask.shape(), [1, 6, 6]);
        let low = Stored::from_f32(&Tensor::scalar(0.5f32.ln()), Dtype::F16).unwrap();
        let low = low.to_f32().unwrap().item().unwrap();
        for row in 0..6 {
            for column in 0..6 {
                let new = (2..5).contains(&column) && !(2..5).contains(&row);
                let expected = if new { low } else { 0.0 };
                assert_eq!(mask.at(&[0, row, column]).unwrap(), expected);
            }
        }
        // A second style keeps what the first said.
        let twice = grown_mask(Some(&mask), 1, [5, 2, 1], 0.0).unwrap();
        assert_eq!(twice.at(&[0, 0, 2]).unwrap(), low);
        assert_eq!(twice.at(&[0, 7, 2]).unwrap(), low);
        assert_eq!(twice.at(&[0, 0, 5]).unwrap(), 0.0);
        assert!(grown_mask(Some(&mask), 1, [2, 2, 1], 0.0).is_err());
    }
}
