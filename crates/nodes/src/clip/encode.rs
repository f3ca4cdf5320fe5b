//! Prompts to conditioning.

use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult, map};

use super::{Clip, required};
use crate::types::{Conditioning, tensor};

/// Turns a prompt into the conditioning that leads sampling towards it.
#[derive(Node)]
#[node(
    id = "CLIPTextEncode",
    v1,
    module = "nodes",
    display = "CLIP Text Encode (Prompt)",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncode {
    /// What to show, or for a negative prompt what not to.
    #[input(multiline = true, dynamicPrompts = true)]
    text: String,
    /// The text encoder of the model that samples.
    clip: Option<Clip>,
}

impl Node for CLIPTextEncode {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let tokens = clip.tokenize(&self.text, cx)?;
        Ok(NodeOutput::one(clip.encode(&tokens, Map::new(), cx)?))
    }
}

/// Turns a prompt for the SDXL refiner into conditioning, with how beautiful and how large the picture should be.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeSDXLRefiner",
    v3,
    module = "comfy_extras.nodes_clip_sdxl",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeSDXLRefiner {
    /// How beautiful the picture should be: 6 is good for a prompt, 2.5 for a negative one.
    #[input(default = 6.0, min = 0.0, max = 1000.0, step = 0.01)]
    ascore: f64,
    /// Width in pixels that the model is told.
    #[input(default = 1024, min = 0, max = 16384)]
    width: i64,
    /// Height in pixels that the model is told.
    #[input(default = 1024, min = 0, max = 16384)]
    height: i64,
    #[input(multiline = true, dynamicPrompts = true)]
    text: String,
    clip: Option<Clip>,
}

impl Node for CLIPTextEncodeSDXLRefiner {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let tokens = clip.tokenize(&self.text, cx)?;
        let extra = map! {
            "aesthetic_score" => self.ascore,
            "width" => self.width,
            "height" => self.height,
        };
        Ok(NodeOutput::one(clip.encode(&tokens, extra, cx)?))
    }
}

/// Turns a prompt for each of the two encoders of SDXL into conditioning, with the sizes that model was trained to know.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeSDXL",
    v3,
    module = "comfy_extras.nodes_clip_sdxl",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeSDXL {
    clip: Option<Clip>,
    /// Width in pixels of the original that the model is told; larger asks for more detail.
    #[input(default = 1024, min = 0, max = 16384)]
    width: i64,
    /// Height in pixels of the original that the model is told; larger asks for more detail.
    #[input(default = 1024, min = 0, max = 16384)]
    height: i64,
    /// Pixels that the model is told were cut off at the left; 0 keeps the subject in the middle.
    #[input(default = 0, min = 0, max = 16384)]
    crop_w: i64,
    /// Pixels that the model is told were cut off at the top; 0 keeps the subject in the middle.
    #[input(default = 0, min = 0, max = 16384)]
    crop_h: i64,
    /// Width in pixels of the picture that is made.
    #[input(default = 1024, min = 0, max = 16384)]
    target_width: i64,
    /// Height in pixels of the picture that is made.
    #[input(default = 1024, min = 0, max = 16384)]
    target_height: i64,
    /// The prompt as the larger encoder, CLIP-G, reads it.
    #[input(multiline = true, dynamicPrompts = true)]
    text_g: String,
    /// The prompt as the smaller encoder, CLIP-L, reads it.
    #[input(multiline = true, dynamicPrompts = true)]
    text_l: String,
}

/// The two networks of this encoder.
const L: &str = "clip_l";
const G: &str = "clip_g";

impl Node for CLIPTextEncodeSDXL {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let mut tokens = clip.tokenize(&self.text_g, cx)?;
        let mut other = clip.tokenize(&self.text_l, cx)?;
        let empty = clip.tokenize("", cx)?;
        let wrong = || {
            NodeError::value_error(
                "this text encoder is not that of SDXL: it does not consist of CLIP-L and CLIP-G",
            )
        };
        let taken = other.get_mut(L).map(std::mem::take);
        *tokens.get_mut(L).ok_or_else(wrong)? = taken.ok_or_else(wrong)?;
        // The shorter prompt goes on with empty chunks.
        let count = |kind: &str| tokens.get(kind).map(|t| t.chunks.len());
        let longest = count(L).max(count(G)).unwrap_or(0);
        for kind in [L, G] {
            let filling = empty.get(kind).and_then(|t| t.chunks.first());
            let filling = filling.ok_or_else(wrong)?.clone();
            let chunks = &mut tokens.get_mut(kind).ok_or_else(wrong)?.chunks;
            chunks.resize(longest, filling);
        }
        let extra = map! {
            "width" => self.width,
            "height" => self.height,
            "crop_w" => self.crop_w,
            "crop_h" => self.crop_h,
            "target_width" => self.target_width,
            "target_height" => self.target_height,
        };
        Ok(NodeOutput::one(clip.encode(&tokens, extra, cx)?))
    }
}

/// Gives control nets a prompt of their own.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeControlnet",
    v3,
    module = "comfy_extras.nodes_cond",
    category = "_for_testing/conditioning",
    outputs("CONDITIONING"),
    experimental
)]
pub(super) struct CLIPTextEncodeControlnet {
    clip: Option<Clip>,
    conditioning: Conditioning,
    #[input(multiline = true, dynamicPrompts = true)]
    text: String,
}

impl Node for CLIPTextEncodeControlnet {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let tokens = clip.tokenize(&self.text, cx)?;
        let encoded = clip.encode_tensors(&tokens, cx)?;
        let conditioning = self
            .conditioning
            .set("cross_attn_controlnet", tensor(encoded.cond))
            .set("pooled_output_controlnet", encoded.pooled.map(tensor));
        Ok(NodeOutput::one(conditioning))
    }
}
