//! Sets with a language model, which reads prompts as a chat.

use fresco_tensor::Tensor;

use super::pairs::{G_PREFIX, L_PREFIX, T5_PREFIX, T5_WIDTH, WIDTHS, saved, take};
use super::t5_alone::{T5_SPECIALS, alone, rows, rows_and_mask, t5_chunks};
use crate::error::Result;
use crate::text::clip::{self, CLIP_G, CLIP_L, bpe};
use crate::text::decoder::{LLAMA, MISTRAL, QWEN3, QWEN3_VL, QWEN25, QWEN35};
use crate::text::t5::{BYT5, T5_ENGLISH};
use crate::text::vocabulary::Unigram;
use crate::text::{
    ChunkRule, EncodeRule, Encoded, LayerRule, PartOutputs, Prompt, PromptRule, PromptTokens,
    PromptWeights, Specials, StackPart, States, TextKind, TextStack, Token, Tokens, WordsPart,
};

/// Numbers that Qwen's marks have.
const IM_START: u32 = 151_644;
const END_OF_TEXT: u32 = 151_643;
pub(super) const IMAGE_PAD: u32 = 151_655;
/// `user` and the line end after it.
const USER: [u32; 2] = [872, 198];

/// Padding, and nothing at the start or the end.
pub(super) const QWEN_SPECIALS: Specials = Specials {
    start: None,
    end: None,
    pad: END_OF_TEXT,
};

pub(super) const QWEN_CHUNKS: ChunkRule = ChunkRule {
    pad: END_OF_TEXT,
    ..ChunkRule::OPEN
};

/// The text in a template, in whose `{}` it goes.
fn within(template: &str, text: &str) -> String {
    template.replacen("{}", text, 1)
}

/// Whether a prompt is a chat by itself.
fn is_chat(text: &str) -> bool {
    text.starts_with("<|im_start|>") || text.starts_with("<|start_header_id|>")
}

/// The text in a template, unless it is a chat already, or a node brings another template.
fn chat(prompt: &Prompt<'_>, template: &str) -> Option<String> {
    if is_chat(prompt.text) {
        return Some(prompt.text.to_owned());
    }
    Some(within(prompt.template.unwrap_or(template), prompt.text))
}

/// A prompt in this template, in which brackets are plain text.
pub(super) const fn templated(
    text: fn(&Prompt<'_>) -> Option<String>,
    chunks: ChunkRule,
) -> PromptRule {
    PromptRule {
        text,
        weights: PromptWeights::Plain,
        chunks,
        picture: None,
    }
}

/// One layer, and nobody looks at padding.
pub(super) const fn masked(layer: LayerRule, specials: Specials) -> EncodeRule {
    EncodeRule {
        masked: true,
        ..EncodeRule::layer(layer, specials)
    }
}

/// A network that must be there, in a checkpoint under its name.
pub(super) const fn part(
    name: &'static str,
    kinds: &'static [&'static TextKind],
    prefix: &'static [&'static str; 1],
    prompt: PromptRule,
    rule: EncodeRule,
) -> StackPart {
    StackPart {
        name,
        kinds,
        optional: false,
        prefixes: prefix,
        prompt,
        rule,
        saved: saved(prefix[0]),
    }
}

/// Z-Image: the layer before the last, all of the chat.
pub static Z_IMAGE: TextStack = TextStack {
    name: "ZImage",
    parts: &[part(
        "qwen3_4b",
        &[&QWEN3],
        &["text_encoders.qwen3_4b.transformer."],
        templated(
            |prompt| {
                let template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";
                Some(within(prompt.template.unwrap_or(template), prompt.text))
            },
            QWEN_CHUNKS,
        ),
        masked(LayerRule::bare(-2), QWEN_SPECIALS),
    )],
    words: &[],
    join: rows_and_mask,
};

/// Layers whose states Flux 2 klein reads.
const KLEIN_RULE: EncodeRule = EncodeRule {
    states: States::Entering(&[9, 18, 27]),
    ..masked(LayerRule::LAST, QWEN_SPECIALS)
};

const KLEIN_PROMPT: PromptRule = templated(
    |prompt| {
        let template =
            "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        Some(within(prompt.template.unwrap_or(template), prompt.text))
    },
    ChunkRule {
        least: 512,
        ..QWEN_CHUNKS
    },
);

/// Flux 2 klein with four billion weights.
pub static FLUX2_KLEIN_4B: TextStack = TextStack {
    name: "Flux2Klein4b",
    parts: &[part(
        "qwen3_4b",
        &[&QWEN3],
        &["text_encoders.qwen3_4b.transformer."],
        KLEIN_PROMPT,
        KLEIN_RULE,
    )],
    words: &[],
    join: rows,
};

/// Flux 2 klein with nine billion weights.
pub static FLUX2_KLEIN_9B: TextStack = TextStack {
    name: "Flux2Klein9b",
    parts: &[part(
        "qwen3_8b",
        &[&QWEN3],
        &["text_encoders.qwen3_8b.transformer."],
        KLEIN_PROMPT,
        KLEIN_RULE,
    )],
    words: &[],
    join: rows,
};

/// Flux 2 dev: states of three layers of Mistral.
pub static FLUX2: TextStack = TextStack {
    name: "Flux2",
    parts: &[part(
        "mistral3_24b",
        &[&MISTRAL],
        &["text_encoders.mistral3_24b.transformer."],
        templated(
            |prompt| {
                let template = "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured \
                    responses focusing on object relationships, object\nattribution and actions without \
                    speculation.[/SYSTEM_PROMPT][INST]{}[/INST]";
                Some(within(prompt.template.unwrap_or(template), prompt.text))
            },
            ChunkRule {
                start: Some(1),
                pad: 11,
                pad_left: true,
                ..ChunkRule::OPEN
            },
        ),
        EncodeRule {
            states: States::Entering(&[10, 20, 30]),
            ..masked(
                LayerRule::LAST,
                Specials {
                    start: Some(1),
                    end: None,
                    pad: 0,
                },
            )
        },
    )],
    words: &[],
    join: rows_and_mask,
};

/// What Qwen-Image asks its text encoder to do.
const DESCRIBE: &str = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, \
    spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";

/// The same where pictures come with the prompt.
const DESCRIBE_PICTURE: &str = "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, \
    objects, background), then explain how the user's text instruction should alter or modify the image. Generate a new \
    image that meets the user's requirements while maintaining consistency with the original input where \
    appropriate.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n";

/// The same where the prompt says itself where its pictures are.
pub const EDIT_TEMPLATE: &str = "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, \
    objects, background), then explain how the user's text instruction should alter or modify the image. Generate a new \
    image that meets the user's requirements while maintaining consistency with the original input where \
    appropriate.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";

/// Qwen-Image and its editing models: the last layer, without the instruction before the prompt.
pub static QWEN_IMAGE: TextStack = TextStack {
    name: "QwenImage",
    parts: &[part(
        "qwen25_7b",
        &[&QWEN25],
        &["text_encoders.qwen25_7b.transformer."],
        PromptRule {
            picture: Some(IMAGE_PAD),
            ..templated(
                |prompt| {
                    let pictures = !prompt.pictures.is_empty();
                    chat(prompt, if pictures { DESCRIBE_PICTURE } else { DESCRIBE })
                },
                QWEN_CHUNKS,
            )
        },
        masked(LayerRule::LAST, QWEN_SPECIALS),
    )],
    words: &[],
    join: |outputs, tokens| {
        let start = after_system(tokens.get("qwen25_7b"), true);
        cut_rows(outputs, start)
    },
};

/// Where a prompt begins: after the second turn's mark; after its `user` too, if wanted. None without any mark: then only
/// the last row counts.
fn after_system(tokens: Option<&Tokens>, with_user: bool) -> Option<usize> {
    let chunk = tokens.and_then(|t| t.chunks.first())?;
    let id = |at: usize| match chunk.get(at).map(|t| &t.token) {
        Some(Token::Id(id)) => Some(*id),
        _ => None,
    };
    let mut marks = (0..chunk.len()).filter(|at| id(*at) == Some(IM_START));
    let first = marks.next()?;
    let start = marks.next().unwrap_or(first);
    let named = id(start + 1) == Some(USER[0]) && id(start + 2) == Some(USER[1]);
    Some(if with_user && named && chunk.len() > start + 3 {
        start + 3
    } else {
        start
    })
}

/// The rows from one on, and their mask if it says anything.
fn cut_rows(outputs: PartOutputs<'_>, start: Option<usize>) -> Result<Encoded> {
    let output = alone(outputs)?;
    let length = output.hidden.dim(1)?;
    let start = start
        .unwrap_or_else(|| length.saturating_sub(1))
        .min(length);
    let from = |t: &Tensor| t.narrow(1, start, length - start);
    let mask = output.mask.as_ref().map(from).transpose()?;
    let mask = mask.filter(|mask| mask.data().contains(&0.0));
    Ok(Encoded::new(from(&output.hidden)?).with("attention_mask", mask))
}

/// Texts in quotes, as the network that draws letters reads them; none without any.
fn quoted(text: &str) -> Option<String> {
    let mut found = String::new();
    for (open, close) in [('"', '"'), ('‘', '’'), ('“', '”')] {
        for line in text.split('\n') {
            let mut rest = line;
            while let Some((_, tail)) = rest.split_once(open) {
                let Some((inner, after)) = tail.split_once(close) else {
                    break;
                };
                for part in ["Text \"", inner, "\". "] {
                    found.push_str(part);
                }
                rest = after;
            }
        }
    }
    (!found.is_empty()).then_some(found)
}

const BYT5_ONLY: &[&TextKind] = &[&BYT5];
const CLIP_L_ONLY: &[&TextKind] = &[&CLIP_L];

const GLYPHS: StackPart = StackPart {
    optional: true,
    ..part(
        "byt5",
        BYT5_ONLY,
        &["text_encoders.byt5_small.transformer."],
        PromptRule {
            text: |prompt| quoted(prompt.text),
            ..PromptRule::plain(t5_chunks(1))
        },
        EncodeRule {
            zero_masked: true,
            ..masked(LayerRule::LAST, T5_SPECIALS)
        },
    )
};

const fn described(text: fn(&Prompt<'_>) -> Option<String>, layer: LayerRule) -> StackPart {
    part(
        "qwen25_7b",
        QWEN25_ONLY,
        &["text_encoders.qwen25_7b.transformer."],
        templated(text, QWEN_CHUNKS),
        masked(layer, QWEN_SPECIALS),
    )
}

const QWEN25_ONLY: &[&TextKind] = &[&QWEN25];

/// The first number of prompts for the refiner, and where those are cut.
const HEADER: (u32, usize) = (27, 36);

/// Qwen's rows without the instruction, and what is in quotes as letters.
fn with_glyphs(outputs: PartOutputs<'_>, tokens: &PromptTokens) -> Result<Encoded> {
    let mut outputs = outputs.into_iter();
    let (text, glyphs) = (take(&mut outputs), take(&mut outputs));
    let tokens = tokens.get("qwen25_7b");
    let chunk = tokens.and_then(|t| t.chunks.first());
    let headed = chunk.is_some_and(|chunk| {
        let first = chunk.first().map(|t| &t.token);
        first == Some(&Token::Id(HEADER.0)) && chunk.len() > HEADER.1
    });
    let start = if headed {
        Some(HEADER.1)
    } else {
        after_system(tokens, true)
    };
    let encoded = cut_rows(vec![text], start)?;
    Ok(encoded.with("conditioning_byt5small", glyphs.map(|g| g.output.hidden)))
}

/// HunyuanImage 2.1.
pub static HUNYUAN_IMAGE: TextStack = TextStack {
    name: "HunyuanImage",
    parts: &[
        described(
            |prompt| {
                let template = DESCRIBE.trim_end_matches("\n<|im_start|>assistant\n");
                chat(prompt, template)
            },
            LayerRule::bare(-3),
        ),
        GLYPHS,
    ],
    words: &[],
    join: with_glyphs,
};

/// HunyuanVideo 1.5.
pub static HUNYUAN_VIDEO_15: TextStack = TextStack {
    name: "HunyuanVideo15",
    parts: &[
        described(
            |prompt| {
                let template = "<|im_start|>system\nYou are a helpful assistant. Describe the video by detailing the following \
                    aspects:\n1. The main content and theme of the video.\n2. The color, shape, size, texture, quantity, \
                    text, and spatial relationships of the objects.\n3. Actions, events, behaviors temporal relationships, \
                    physical movement changes of the objects.\n4. background environment, light, style and atmosphere.\n5. \
                    camera angles, movements, and transitions used in the \
                    video.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";
                let text = if prompt.text.is_empty() {
                    " "
                } else {
                    prompt.text
                };
                chat(&Prompt { text, ..*prompt }, template)
            },
            LayerRule::bare(-3),
        ),
        GLYPHS,
    ],
    words: &[],
    join: with_glyphs,
};

/// CLIP's vector.
const POOLED: StackPart = part(
    "clip_l",
    CLIP_L_ONLY,
    &[L_PREFIX],
    clip::prompt(bpe::END),
    clip::rule(LayerRule::LAST, false),
);

/// The prompt after the instruction, and CLIP's vector.
fn described_and_pooled(outputs: PartOutputs<'_>, tokens: &PromptTokens) -> Result<Encoded> {
    let mut outputs = outputs.into_iter();
    let (text, clip) = (take(&mut outputs), take(&mut outputs));
    let start = after_system(tokens.get("qwen25_7b"), true);
    Ok(Encoded {
        pooled: clip.and_then(|clip| clip.output.pooled),
        ..cut_rows(vec![text], start)?
    })
}

/// Kandinsky 5 for films: the last layer without its norm.
pub static KANDINSKY5: TextStack = TextStack {
    name: "Kandinsky5",
    parts: &[
        described(
            |prompt| {
                let template = "<|im_start|>system\nYou are a promt engineer. Describe the video in detail.\nDescribe how the \
                    camera moves or shakes, describe the zoom and view angle, whether it follows the objects.\nDescribe the \
                    location of the video, main characters or objects and their action.\nDescribe the dynamism of the video \
                    and presented actions.\nName the visual style of the video: whether it is a professional footage, user \
                    generated content, some kind of animation, video game or screen content.\nDescribe the visual effects, \
                    postprocessing and transitions if they are presented in the video.\nPay attention to the order of key \
                    actions shown in the scene.<|im_end|>\n<|im_start|>user\n{}<|im_end|>";
                chat(prompt, template)
            },
            LayerRule::bare(-1),
        ),
        POOLED,
    ],
    words: &[],
    join: described_and_pooled,
};

/// Kandinsky 5 for pictures.
pub static KANDINSKY5_IMAGE: TextStack = TextStack {
    name: "Kandinsky5Image",
    parts: &[
        described(
            |prompt| {
                let template = "<|im_start|>system\nYou are a promt engineer. Describe the image by detailing the color, shape, \
                    size, texture, quantity, text, spatial relationships of the objects and \
                    background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>";
                chat(prompt, template)
            },
            LayerRule::bare(-1),
        ),
        POOLED,
    ],
    words: &[],
    join: described_and_pooled,
};

/// OmniGen 2: all of the chat.
pub static OMNIGEN2: TextStack = TextStack {
    name: "Omnigen2",
    parts: &[part(
        "qwen25_3b",
        &[&QWEN25],
        &["text_encoders.qwen25_3b.transformer."],
        PromptRule {
            weights: PromptWeights::Count,
            ..templated(
                |prompt| {
                    let template = "<|im_start|>system\nYou are a helpful assistant that generates high-quality images based on \
                        user instructions.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n";
                    Some(within(template, prompt.text))
                },
                QWEN_CHUNKS,
            )
        },
        masked(LayerRule::LAST, QWEN_SPECIALS),
    )],
    words: &[],
    join: rows_and_mask,
};

/// Ovis-Image: from the colon of the instruction on, always as many rows.
pub static OVIS: TextStack = TextStack {
    name: "Ovis",
    parts: &[part(
        "qwen3_2b",
        &[&QWEN3],
        &["text_encoders.qwen3_2b.transformer."],
        templated(
            |prompt| {
                let template = "<|im_start|>user\nDescribe the image by detailing the color, quantity, text, shape, size, \
                    texture, spatial relationships of the objects and background: \
                    {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
                Some(within(template, prompt.text))
            },
            ChunkRule {
                least: 284,
                ..QWEN_CHUNKS
            },
        ),
        EncodeRule {
            zero_masked: true,
            ..masked(LayerRule::LAST, QWEN_SPECIALS)
        },
    )],
    words: &[],
    join: |outputs, tokens| {
        /// `background` and the colon after it.
        const END: [u32; 2] = [4004, 25];
        let chunk = tokens.get("qwen3_2b").and_then(|t| t.chunks.first());
        let ids = chunk.into_iter().flatten().map(|t| match t.token {
            Token::Id(id) => id,
            _ => 0,
        });
        let ids: Vec<u32> = ids.collect();
        let word = ids.iter().position(|id| *id == END[0]);
        let colon = word
            .map(|at| at + 1)
            .filter(|at| ids.get(*at) == Some(&END[1]));
        let encoded = cut_rows(outputs, Some(colon.or(word).unwrap_or(0)))?;
        Ok(Encoded::new(encoded.cond))
    },
};

/// Qwen-Image 2.1: the last layer without its norm, without the system's turn.
pub static QWEN_IMAGE21: TextStack = TextStack {
    name: "QwenImage21",
    parts: &[part(
        "qwen3vl_8b",
        &[&QWEN3_VL],
        &["text_encoders.qwen3vl_8b.transformer."],
        PromptRule {
            picture: Some(IMAGE_PAD),
            ..templated(
                |prompt| {
                    let template = "<|im_start|>system\nComprehend and analyze the provided \
                        prompt.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";
                    let refs = (1..=prompt.pictures.len())
                        .map(|n| format!("<image{n}><|vision_start|><|image_pad|><|vision_end|>"));
                    let refs = refs.collect::<Vec<_>>().join(" ");
                    let text = if prompt.text.is_empty() {
                        " "
                    } else {
                        prompt.text
                    };
                    Some(within(
                        prompt.template.unwrap_or(template),
                        &format!("{refs}{text}"),
                    ))
                },
                QWEN_CHUNKS,
            )
        },
        masked(LayerRule::bare(-1), QWEN_SPECIALS),
    )],
    words: &[],
    join: |outputs, tokens| {
        let tokens = tokens.get("qwen3vl_8b");
        let start = after_system(tokens, false).unwrap_or(0);
        let rows = alone_length(&outputs);
        let slots = picture_rows(tokens, &outputs, rows)?;
        let slots = slots.map(|slots| slots.narrow(1, start, rows - start));
        let encoded = cut_rows(outputs, Some(start))?;
        Ok(encoded.with("picture_slots", slots.transpose()?))
    },
};

fn alone_length(outputs: &PartOutputs<'_>) -> usize {
    let output = outputs.iter().flatten().next();
    output.map_or(0, |output| output.output.hidden.shape()[1])
}

/// Which rows are those of pictures, `(1, n)`: the number of the picture, counted from 1, or 0 for words. None without
/// pictures.
fn picture_rows(
    tokens: Option<&Tokens>,
    outputs: &PartOutputs<'_>,
    rows: usize,
) -> Result<Option<Tensor>> {
    let spans = outputs.iter().flatten().next();
    let spans = spans.map_or(&[][..], |output| &output.output.pictures);
    if tokens.is_none() || spans.is_empty() {
        return Ok(None);
    }
    let mut slots = vec![0.0; rows];
    for (number, (start, len)) in spans.iter().enumerate() {
        let end = (start + len).min(rows);
        slots[*start.min(&end)..end].fill((number + 1) as f32);
    }
    Ok(Some(Tensor::from_vec([1, rows], slots)?))
}

/// Layers whose states Krea 2 reads.
const KREA: &[usize] = &[2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35];

/// Krea 2: twelve states for each token, without the instruction.
pub static KREA2: TextStack = TextStack {
    name: "Krea2",
    parts: &[part(
        "qwen3vl_4b",
        &[&QWEN3_VL],
        &["text_encoders.qwen3vl_4b.transformer."],
        PromptRule {
            picture: Some(IMAGE_PAD),
            ..templated(|prompt| chat(prompt, DESCRIBE), QWEN_CHUNKS)
        },
        EncodeRule {
            states: States::Entering(KREA),
            ..masked(LayerRule::LAST, QWEN_SPECIALS)
        },
    )],
    words: &[],
    join: |outputs, tokens| {
        let start = after_system(tokens.get("qwen3vl_4b"), true);
        cut_rows(outputs, start)
    },
};

/// Layers whose states Flux 3 reads.
const FLUX3_LAYERS: &[usize] = &[4, 8, 12, 16, 20, 24, 28, 32];

/// Flux 3 klein: eight states for each token, padded and all of it kept.
pub static FLUX3: TextStack = TextStack {
    name: "Flux3",
    parts: &[part(
        "qwen3vl_4b",
        &[&QWEN3_VL],
        &["text_encoders.qwen3vl_4b.transformer."],
        PromptRule {
            picture: Some(IMAGE_PAD),
            ..templated(
                |prompt| {
                    let template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";
                    chat(prompt, template)
                },
                ChunkRule {
                    multiple: 80,
                    ..QWEN_CHUNKS
                },
            )
        },
        EncodeRule {
            states: States::Entering(FLUX3_LAYERS),
            pads_at: Some(1),
            ..masked(LayerRule::LAST, QWEN_SPECIALS)
        },
    )],
    words: &[],
    join: rows,
};

/// Qwen 3.5, which writes prompts for models that other networks read prompts for.
pub static PROMPT_WRITER: TextStack = TextStack {
    name: "PromptWriter",
    parts: &[part(
        "qwen35",
        &[&QWEN35],
        &["text_encoders.qwen35.transformer."],
        templated(
            |prompt| {
                let template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n";
                chat(prompt, template)
            },
            WRITER_CHUNKS,
        ),
        masked(
            LayerRule::LAST,
            Specials {
                start: None,
                end: None,
                pad: WRITER_CHUNKS.pad,
            },
        ),
    )],
    words: &[],
    join: rows_and_mask,
};

/// Padding is the end of a text, whose number Qwen 3.5 has elsewhere.
const WRITER_CHUNKS: ChunkRule = ChunkRule {
    pad: 248_044,
    ..ChunkRule::OPEN
};

/// Anima: rows of the smallest Qwen 3, and the prompt as T5's tokens, which the model itself reads.
pub static ANIMA: TextStack = TextStack {
    name: "Anima",
    parts: &[part(
        "qwen3_06b",
        &[&QWEN3],
        &["text_encoders.qwen3_06b.transformer."],
        PromptRule {
            weights: PromptWeights::Drop,
            ..PromptRule::plain(QWEN_CHUNKS)
        },
        EncodeRule {
            zero_masked: true,
            ..masked(LayerRule::LAST, QWEN_SPECIALS)
        },
    )],
    words: &[WordsPart {
        name: "t5xxl",
        vocabulary: || Unigram::t5(),
        prompt: PromptRule::plain(t5_chunks(1)),
    }],
    join: |outputs, tokens| {
        let chunks = tokens.get("t5xxl").map_or(&[][..], |t| &t.chunks);
        let words = || chunks.iter().flatten();
        let id = |token: &Token| match token {
            Token::Id(id) => *id as f32,
            _ => 0.0,
        };
        let ids: Vec<f32> = words().map(|t| id(&t.token)).collect();
        let weights: Vec<f32> = words().map(|t| t.weight as f32).collect();
        let row = |values: Vec<f32>| Tensor::from_vec([1, values.len()], values);
        let encoded = rows_and_mask(outputs, tokens)?;
        let encoded = encoded.with("t5xxl_ids", Some(row(ids)?));
        Ok(encoded.with("t5xxl_weights", Some(row(weights)?)))
    },
};

const LLAMA_SPECIALS: Specials = Specials {
    start: Some(128_000),
    end: None,
    pad: 128_009,
};

/// Rows of T5 that HiDream reads.
const HIDREAM_ROWS: usize = 128;

/// HiDream: any of its four networks.
pub static HIDREAM: TextStack = TextStack {
    name: "HiDream",
    parts: &[
        StackPart {
            optional: true,
            rule: clip::rule(LayerRule::bare(-2), true),
            ..POOLED
        },
        StackPart {
            optional: true,
            ..part(
                "clip_g",
                &[&CLIP_G],
                &[G_PREFIX],
                clip::prompt(0),
                clip::rule(LayerRule::bare(-2), true),
            )
        },
        StackPart {
            optional: true,
            ..part(
                "t5xxl",
                &[&T5_ENGLISH],
                &[T5_PREFIX],
                PromptRule::plain(ChunkRule {
                    most: Some(HIDREAM_ROWS),
                    ..t5_chunks(HIDREAM_ROWS)
                }),
                masked(LayerRule::LAST, T5_SPECIALS),
            )
        },
        StackPart {
            optional: true,
            ..part(
                "llama",
                &[&LLAMA],
                &["text_encoders.llama.transformer."],
                PromptRule::plain(ChunkRule {
                    start: Some(128_000),
                    pad: 128_009,
                    least: 128,
                    ..ChunkRule::OPEN
                }),
                EncodeRule {
                    states: States::All,
                    ..masked(LayerRule::LAST, LLAMA_SPECIALS)
                },
            )
        },
    ],
    words: &[],
    join: |outputs, _| {
        let mut outputs = outputs.into_iter();
        let [l, g, t5, llama] = [(); 4].map(|()| take(&mut outputs).map(|o| o.output));
        let zeros = |width: usize| Tensor::zeros([1, width]);
        let pooled = |found: Option<Tensor>, width| found.map_or_else(|| zeros(width), Ok);
        let l = pooled(l.and_then(|l| l.pooled), WIDTHS.0)?;
        let g = pooled(g.and_then(|g| g.pooled), WIDTHS.1)?;
        let cond = match t5 {
            Some(t5) => t5
                .hidden
                .narrow(1, 0, HIDREAM_ROWS.min(t5.hidden.dim(1)?))?,
            None => Tensor::zeros([1, HIDREAM_ROWS, T5_WIDTH])?,
        };
        // What enters the first layer is not read.
        let states = match llama {
            Some(llama) => llama.hidden.narrow(1, 1, llama.hidden.dim(1)? - 1)?,
            None => Tensor::zeros([1, 32, 1, T5_WIDTH])?,
        };
        let encoded = Encoded {
            pooled: Some(Tensor::cat(&[&l, &g], 1)?),
            ..Encoded::new(cond)
        };
        Ok(encoded.with("conditioning_llama3", Some(states)))
    },
};

/// HunyuanVideo: Llama's rows of the prompt, CLIP's vector.
pub static HUNYUAN_VIDEO: TextStack = TextStack {
    name: "HunyuanVideo",
    parts: &[
        part(
            "llama",
            &[&LLAMA],
            &["text_encoders.llama.transformer."],
            PromptRule {
                text: |prompt| {
                    let template = "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following \
                        aspects: 1. The main content and theme of the video.2. The color, shape, size, texture, quantity, \
                        text, and spatial relationships of the objects.3. Actions, events, behaviors temporal \
                        relationships, physical movement changes of the objects.4. background environment, light, style and \
                        atmosphere.5. camera angles, movements, and transitions used in the \
                        video:<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>";
                    Some(within(prompt.template.unwrap_or(template), prompt.text))
                },
                ..PromptRule::plain(ChunkRule {
                    start: Some(128_000),
                    pad: 128_258,
                    ..ChunkRule::OPEN
                })
            },
            masked(
                LayerRule::bare(-3),
                Specials {
                    pad: 128_258,
                    ..LLAMA_SPECIALS
                },
            ),
        ),
        POOLED,
    ],
    words: &[],
    join: |outputs, tokens| {
        let mut outputs = outputs.into_iter();
        let (text, clip) = (take(&mut outputs), take(&mut outputs));
        let (start, end) = user_turn(tokens.get("llama"));
        let output = alone(vec![text])?;
        let length = output.hidden.dim(1)?;
        let end = end.unwrap_or(length).min(length);
        let start = start.min(end);
        let from = |t: &Tensor| t.narrow(1, start, end - start);
        let mask = output.mask.as_ref().map(from).transpose()?;
        let mask = mask.filter(|mask| mask.data().contains(&0.0));
        let encoded = Encoded::new(from(&output.hidden)?).with("attention_mask", mask);
        Ok(Encoded {
            pooled: clip.and_then(|clip| clip.output.pooled),
            ..encoded
        })
    },
};

/// Where the user's turn begins and ends in Llama's chat.
fn user_turn(tokens: Option<&Tokens>) -> (usize, Option<usize>) {
    const HEAD: [u32; 3] = [128_006, 882, 128_007];
    const BLANK_LINE: u32 = 271;
    const END: u32 = 128_009;
    let chunk = tokens.and_then(|t| t.chunks.first());
    let ids = chunk.into_iter().flatten().map(|t| match t.token {
        Token::Id(id) => id,
        _ => 0,
    });
    let ids: Vec<u32> = ids.collect();
    let Some(head) = ids.windows(HEAD.len()).position(|w| w == HEAD) else {
        return (0, None);
    };
    let mut start = head + HEAD.len();
    if ids.get(start) == Some(&BLANK_LINE) {
        start += 1;
    }
    let end = ids[start..].iter().position(|id| *id == END);
    (start, end.map(|at| start + at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_of_all_kinds_are_found() {
        let found = quoted("say \"Hello World\" and “你好” or ‘hi’");
        assert_eq!(
            found.as_deref(),
            Some("Text \"Hello World\". Text \"hi\". Text \"你好\". ")
        );
        assert_eq!(quoted("no \"end\n of it\""), None);
        assert_eq!(quoted(""), None);
    }
}
