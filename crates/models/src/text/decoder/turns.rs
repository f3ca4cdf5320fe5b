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
    /// One token to those that know what thinking is; older ones do not.
    pub(in crate::text) think: &'static str,
    /// Whether that, before what is told first, asks for thinking.
    pub(in crate::text) told_to_think: bool,
    /// In an answer that is not thought about.
    pub(in crate::text) unthought: &'static str,
    /// Begins one that is.
    pub(in crate::text) thought: &'static str,
    /// Around a picture.
    pub(in crate::text) picture: [&'static str; 2],
    /// Around a sound.
    pub(in crate::text) sound: [&'static str; 2],
    pub(in crate::text) ends: &'static [&'static str],
}

/// Stands for a picture in a text.
pub(in crate::text) const PICTURE: &str = "<|image_pad|>";
/// The same for a sound.
pub(in crate::text) const SOUND: &str = "<|audio_pad|>";

const QWEN: Turns = Turns {
    known: &["<|im_end|>", "<|endoftext|>"],
    system: ["<|im_start|>system\n", "<|im_end|>\n"],
    inside: false,
    user: ["<|im_start|>user\n", "<|im_end|>\n"],
    answer: "<|im_start|>assistant\n",
    think: "<think>",
    told_to_think: false,
    unthought: "<think>\n\n</think>\n\n",
    thought: "<think>\n",
    picture: ["<|vision_start|>", "<|vision_end|>"],
    sound: ["", ""],
    ends: &["<|im_end|>", "<|endoftext|>"],
};

const GEMMA: Turns = Turns {
    known: &["<start_of_turn>", "<end_of_turn>"],
    system: ["", "\n\n"],
    inside: true,
    user: ["<start_of_turn>user\n", "<end_of_turn>\n"],
    answer: "<start_of_turn>model\n",
    think: "<think>",
    told_to_think: false,
    unthought: "",
    thought: "",
    picture: ["\n\n<start_of_image>", "<end_of_image>\n\n"],
    sound: ["", ""],
    ends: &["<end_of_turn>"],
};

const GEMMA4: Turns = Turns {
    known: &["<|turn>", "<turn|>"],
    system: ["<|turn>system\n", "<turn|>\n"],
    inside: false,
    user: ["<|turn>user\n", "<turn|>\n"],
    answer: "<|turn>model\n",
    think: "<|think|>",
    told_to_think: true,
    unthought: "<|channel>thought\n<channel|>",
    thought: "",
    picture: ["\n\n<|image>", "<image|>\n\n"],
    sound: ["<|audio>", "<audio|>"],
    ends: &["<turn|>", "<eos>", "<|tool_response>"],
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
    think: "<think>",
    told_to_think: false,
    unthought: "",
    thought: "",
    picture: ["", ""],
    sound: ["", ""],
    ends: &["<|eot_id|>", "<|end_of_text|>"],
};

const MISTRAL: Turns = Turns {
    known: &["[INST]", "[/INST]", "</s>"],
    system: ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
    inside: false,
    user: ["[INST]", "[/INST]"],
    answer: "",
    think: "<think>",
    told_to_think: false,
    unthought: "",
    thought: "",
    picture: ["", ""],
    sound: ["", ""],
    ends: &["</s>"],
};

/// Those that are known.
pub(in crate::text) const TURNS: [&Turns; 5] = [&QWEN, &GEMMA4, &GEMMA, &LLAMA, &MISTRAL];
