//! Prompts for the text encoders of one family each: a text of its own for every network, or a template around it.

use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult, map};
use fresco_models::text::PromptTokens;

use super::{Clip, required};

/// One text for each network, by the networks' names. Networks that nobody names read the first.
fn each(clip: &Clip, texts: &[(&str, &str)], cx: &Cx) -> Result<PromptTokens, NodeError> {
    let mut tokens = PromptTokens::default();
    for (name, text) in texts {
        let mut all = clip.tokenize(text, cx)?;
        if tokens.0.is_empty() {
            tokens = all;
        } else if let (Some(place), Some(own)) = (tokens.get_mut(name), all.get_mut(name)) {
            *place = std::mem::take(own);
        }
    }
    Ok(tokens)
}

/// Turns a prompt for each of the two encoders of Flux into conditioning, with how closely to follow it.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeFlux",
    v3,
    module = "comfy_extras.nodes_flux",
    category = "advanced/conditioning/flux",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeFlux {
    clip: Option<Clip>,
    #[input(multiline = true, dynamicPrompts = true)]
    clip_l: String,
    #[input(multiline = true, dynamicPrompts = true)]
    t5xxl: String,
    #[input(default = 3.5, min = 0.0, max = 100.0, step = 0.1)]
    guidance: f64,
}

impl Node for CLIPTextEncodeFlux {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let texts = [("clip_l", &*self.clip_l), ("t5xxl", &*self.t5xxl)];
        let tokens = each(&clip, &texts, cx)?;
        let extra = map! {"guidance" => self.guidance};
        Ok(NodeOutput::one(clip.encode(&tokens, extra, cx)?))
    }
}

/// Turns a prompt for each of the three encoders of Stable Diffusion 3 into conditioning.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeSD3",
    v3,
    module = "comfy_extras.nodes_sd3",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeSD3 {
    clip: Option<Clip>,
    #[input(multiline = true, dynamicPrompts = true)]
    clip_l: String,
    #[input(multiline = true, dynamicPrompts = true)]
    clip_g: String,
    #[input(multiline = true, dynamicPrompts = true)]
    t5xxl: String,
    /// Whether an encoder without a text gets an empty prompt or nothing at all.
    #[input(choices = ["none", "empty_prompt"])]
    empty_padding: String,
}

impl Node for CLIPTextEncodeSD3 {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let texts = [
            ("clip_g", &*self.clip_g),
            ("clip_l", &*self.clip_l),
            ("t5xxl", &*self.t5xxl),
        ];
        let mut tokens = each(&clip, &texts, cx)?;
        if self.empty_padding == "none" {
            for (name, _) in texts.iter().filter(|(_, text)| text.is_empty()) {
                if let Some(tokens) = tokens.get_mut(name) {
                    tokens.chunks.clear();
                }
            }
        }
        // The shorter prompt of the two goes on with empty chunks.
        let count = |name: &str| tokens.get(name).map_or(0, |t| t.chunks.len());
        let longest = count("clip_l").max(count("clip_g"));
        let empty = clip.tokenize("", cx)?;
        for name in ["clip_l", "clip_g"] {
            let filling = empty.get(name).and_then(|t| t.chunks.first());
            if let (Some(filling), Some(tokens)) = (filling, tokens.get_mut(name)) {
                tokens.chunks.resize(longest, filling.clone());
            }
        }
        Ok(NodeOutput::one(clip.encode(&tokens, Map::new(), cx)?))
    }
}

/// Turns a prompt for each of the four encoders of HiDream into conditioning.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeHiDream",
    v3,
    module = "comfy_extras.nodes_hidream",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeHiDream {
    clip: Option<Clip>,
    #[input(multiline = true, dynamicPrompts = true)]
    clip_l: String,
    #[input(multiline = true, dynamicPrompts = true)]
    clip_g: String,
    #[input(multiline = true, dynamicPrompts = true)]
    t5xxl: String,
    /// The prompt as the language model Llama reads it.
    #[input(multiline = true, dynamicPrompts = true)]
    llama: String,
}

impl Node for CLIPTextEncodeHiDream {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let texts = [
            ("clip_g", &*self.clip_g),
            ("clip_l", &*self.clip_l),
            ("t5xxl", &*self.t5xxl),
            ("llama", &*self.llama),
        ];
        let tokens = each(&clip, &texts, cx)?;
        Ok(NodeOutput::one(clip.encode(&tokens, Map::new(), cx)?))
    }
}

/// Turns a prompt for each of the two encoders of HunyuanDiT into conditioning.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeHunyuanDiT",
    v3,
    module = "comfy_extras.nodes_hunyuan",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeHunyuanDiT {
    clip: Option<Clip>,
    /// The prompt as the encoder BERT reads it.
    #[input(multiline = true, dynamicPrompts = true)]
    bert: String,
    /// The prompt as the encoder mT5 reads it.
    #[input(multiline = true, dynamicPrompts = true)]
    mt5xl: String,
}

impl Node for CLIPTextEncodeHunyuanDiT {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let texts = [("hydit_clip", &*self.bert), ("mt5xl", &*self.mt5xl)];
        let tokens = each(&clip, &texts, cx)?;
        Ok(NodeOutput::one(clip.encode(&tokens, Map::new(), cx)?))
    }
}

/// Turns a prompt for each of the two encoders of Kandinsky 5 into conditioning.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeKandinsky5",
    v3,
    module = "comfy_extras.nodes_kandinsky5",
    category = "advanced/conditioning/kandinsky5",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeKandinsky5 {
    clip: Option<Clip>,
    #[input(multiline = true, dynamicPrompts = true)]
    clip_l: String,
    /// The prompt as the language model Qwen2.5 reads it.
    #[input(multiline = true, dynamicPrompts = true)]
    qwen25_7b: String,
}

impl Node for CLIPTextEncodeKandinsky5 {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let texts = [("clip_l", &*self.clip_l), ("qwen25_7b", &*self.qwen25_7b)];
        let tokens = each(&clip, &texts, cx)?;
        Ok(NodeOutput::one(clip.encode(&tokens, Map::new(), cx)?))
    }
}

/// Turns a prompt into conditioning for Lumina 2, which was trained with an instruction before each.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodeLumina2",
    v3,
    module = "comfy_extras.nodes_lumina2",
    display = "CLIP Text Encode for Lumina2",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodeLumina2 {
    /// What the model was told about the pictures it should make.
    #[input(choices = ["superior", "alignment"])]
    system_prompt: String,
    /// What to show.
    #[input(multiline = true, dynamicPrompts = true)]
    user_prompt: String,
    clip: Option<Clip>,
}

impl Node for CLIPTextEncodeLumina2 {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let system = match &*self.system_prompt {
            "alignment" => {
                "You are an assistant designed to generate high-quality images with the highest degree of image-text alignment \
                 based on textual prompts."
            }
            _ => {
                "You are an assistant designed to generate superior images with the superior degree of image-text alignment \
                 based on textual prompts or user prompts."
            }
        };
        let text = format!("{system} <Prompt Start> {}", self.user_prompt);
        let tokens = clip.tokenize(&text, cx)?;
        Ok(NodeOutput::one(clip.encode(&tokens, Map::new(), cx)?))
    }
}

/// Turns a prompt into conditioning for PixArt Alpha, which knows the size of its picture.
#[derive(Node)]
#[node(
    id = "CLIPTextEncodePixArtAlpha",
    v3,
    module = "comfy_extras.nodes_pixart",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub(super) struct CLIPTextEncodePixArtAlpha {
    /// Width in pixels of the picture that is made.
    #[input(default = 1024, min = 0, max = 16384)]
    width: i64,
    /// Height in pixels of the picture that is made.
    #[input(default = 1024, min = 0, max = 16384)]
    height: i64,
    #[input(multiline = true, dynamicPrompts = true)]
    text: String,
    clip: Option<Clip>,
}

impl Node for CLIPTextEncodePixArtAlpha {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let tokens = clip.tokenize(&self.text, cx)?;
        let extra = map! {"width" => self.width, "height" => self.height};
        Ok(NodeOutput::one(clip.encode(&tokens, extra, cx)?))
    }
}
