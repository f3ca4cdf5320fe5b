//! Sets of models of films with sound.

use fresco_tensor::Tensor;

use super::chat::{IMAGE_PAD, QWEN_CHUNKS, QWEN_SPECIALS, masked, part, templated};
use super::t5_alone::alone;
use crate::text::decoder::QWEN3_VL;
use crate::text::{Encoded, LayerRule, PromptRule, TextStack};

/// MiniMax H3: the text as it is, the last layer of the file without a norm.
pub static MINIMAX: TextStack = TextStack {
    name: "MiniMax",
    parts: &[part(
        "qwen3vl_32b",
        &[&QWEN3_VL],
        &["text_encoders.qwen3vl_32b.transformer."],
        PromptRule {
            picture: Some(IMAGE_PAD),
            ..templated(|prompt| Some(prompt.text.to_owned()), QWEN_CHUNKS)
        },
        masked(LayerRule::bare(-1), QWEN_SPECIALS),
    )],
    words: &[],
    join: |outputs, _| {
        let output = alone(outputs)?;
        let rows = output.hidden.dim(1)?;
        // Rows of pictures count as pictures, with the marks around them.
        let seen = |at: usize| {
            let mut pictures = output.pictures.iter();
            pictures
                .any(|(start, count)| (start.saturating_sub(1)..start + count + 1).contains(&at))
        };
        let tags = Tensor::from_fn([1, rows], |at| f32::from(u8::from(!seen(at))))?;
        let tags = (!output.pictures.is_empty()).then_some(tags);
        Ok(Encoded::new(output.hidden).with(crate::minimax::TAGS, tags))
    },
};
