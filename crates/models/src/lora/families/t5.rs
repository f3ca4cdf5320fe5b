//! T5 in LoRA files.

use crate::lora::{NameMap, Spelling, TextKeys};

/// It is counted after the encoders before it.
pub(crate) fn names(keys: &TextKeys<'_>, map: &mut NameMap) {
    let (first, second) = (keys.has_encoder("clip_l"), keys.has_encoder("clip_g"));
    let number = 1 + usize::from(first) + usize::from(second);
    // Trainers do not agree on whether the absent second encoder is counted.
    let numbers = if number == 2 { 2..=3 } else { number..=number };
    for (path, inner) in keys.inside("t5xxl.transformer.") {
        for number in numbers.clone() {
            let prefix = format!("lora_te{number}_");
            map.add_text(path, inner, &[Spelling::underscores(&prefix)]);
        }
    }
}
