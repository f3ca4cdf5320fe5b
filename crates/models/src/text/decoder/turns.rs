//! Conversations as language models were trained with them.

/// Marks of a conversation, by what networks were trained with.
pub(in crate::text) struct Turns {
    /// Each of these is one token, which tells whose marks they are.
    pub(in crate::text) known: &'static [&'static str],
    /// Around what is told first.
    pub(in crate::text) system: [&'static str; 2],
    /// Whether that is a part of what is asked.
    pub(in crate::text) inside: bool,
    /// Around what is asked.
    pub(in crate::text) user: [&'static str; 2],
    pub(in crate::text) answer: &'static str,
    /// In an answer that is not thought about.
    pub(in crate::text) unthought: &'static str,
    /// Begins one that is.
    pub(in crate::text) thought: &'static str,
    /// Around a picture.
    pub(in crate::text) picture: [&'static str; 2],
    pub(in crate::text) ends: &'static [&'static str],
}

/// Stands for a picture in a text.
pub(in crate::text) const PICTURE: &str = "<|image_pad|>";

const QWEN: Turns = Turns {
    known: &["<|im_end|>", "<|endoftext|>"],
    system: ["<|im_start|>system\n", "<|im_end|>\n"],
    inside: false,
    user: ["<|im_start|>user\n", "<|im_end|>\n"],
    answer: "<|im_start|>assistant\n",
    unthought: "<think>\n\n</think>\n\n",
    thought: "<think>\n",
    picture: ["<|vision_start|>", "<|vision_end|>"],
    ends: &["<|im_end|>", "<|endoftext|>"],
};

const GEMMA: Turns = Turns {
    known: &["<start_of_turn>", "<end_of_turn>"],
    system: ["", "\n\n"],
    inside: true,
    user: ["<start_of_turn>user\n", "<end_of_turn>\n"],
    answer: "<start_of_turn>model\n",
    unthought: "",
    thought: "",
    picture: ["\n\n<start_of_image>", "<end_of_image>\n\n"],
    ends: &["<end_of_turn>"],
};

const LLAMA: Turns = Turns {
    known: &["<|start_header_id|>", "<|eot_id|>"],
    system: [
        "<|start_header_id|>system<|end_header_id|>\n\n",
        "<|eot_id|>",
    ],
    inside: false,
    user: ["<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"],
    answer: "<|start_header_id|>assistant<|end_header_id|>\n\n",
    unthought: "",
    thought: "",
    picture: ["", ""],
    ends: &["<|eot_id|>", "<|end_of_text|>"],
};

const MISTRAL: Turns = Turns {
    known: &["[INST]", "[/INST]", "</s>"],
    system: ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
    inside: false,
    user: ["[INST]", "[/INST]"],
    answer: "",
    unthought: "",
    thought: "",
    picture: ["", ""],
    ends: &["</s>"],
};

/// Those that are known.
pub(in crate::text) const TURNS: [&Turns; 4] = [&QWEN, &GEMMA, &LLAMA, &MISTRAL];
