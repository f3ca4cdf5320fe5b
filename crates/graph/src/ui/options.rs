//! How a file is converted, within which bounds, and what can be wrong with it.

/// Subgraphs may nest this deep.
pub const MAX_DEPTH: usize = 64;
/// Longer ids are refused: they are repeated in the path of every inner node.
pub(super) const MAX_ID: usize = 200;
/// So are paths of ids longer than this.
pub(super) const MAX_PATH: usize = 1000;
/// A longer type is no type; without a bound, comparing the alternatives of two could take minutes.
pub(super) const MAX_TYPE: usize = 256;
/// Input slots of all nodes together: a subgraph with many inputs used many times is small as a file only.
pub(super) const MAX_SLOTS: usize = 4_000_000;
/// Warnings beyond this many are counted, not kept.
pub(super) const MAX_WARNINGS: usize = 200;

/// How to convert.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides which alternative of `{a|b}` is taken; the same seed takes the same.
    pub seed: u64,
    /// Strip comments and choose alternatives in texts whose input says `dynamicPrompts`, as the editor does.
    pub dynamic_prompts: bool,
    /// Fill `%Node.widget%` and, with [`Options::now`], `%date:..%` in the file names of Save nodes.
    pub text_replacements: bool,
    /// The local time for `%date:..%`; without it those are left alone.
    pub now: Option<Now>,
    /// An input fed by a muted node keeps its widget value (front-end 1.58) instead of losing it (1.35).
    pub keep_widgets_of_muted: bool,
    /// Also send values that only the editor shows (audio players, previews), as front-end 1.35 does.
    pub display_values: bool,
    /// Name the class of nodes that nobody knows here, which the editor does not.
    pub name_unknown: bool,
    /// Files that expand to more nodes are refused.
    pub max_nodes: usize,
    /// So are those that expand to more bytes: a long text in a subgraph that is used many times is small as a file only.
    pub max_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            dynamic_prompts: true,
            text_replacements: true,
            now: None,
            keep_widgets_of_muted: false,
            display_values: true,
            name_unknown: false,
            max_nodes: 100_000,
            max_bytes: 256 << 20,
        }
    }
}

/// A local time, for `%date:..%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub year: u32,
    pub month: u32,
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
}

/// Why a file has no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    #[error("this is not a workflow saved by the editor: it has no list of nodes")]
    NotUi,
    #[error("this is neither a workflow nor a prompt")]
    Unknown,
    #[error("subgraph {name:?} contains itself")]
    Recursive { name: String },
    #[error("subgraphs nest deeper than {limit} levels at node {node}")]
    TooDeep { node: String, limit: usize },
    #[error("the workflow expands to more than {limit} nodes")]
    TooLarge { limit: usize },
    #[error("the workflow expands to more than {limit} bytes")]
    TooLong { limit: usize },
    #[error("the links of the workflow take too long to follow")]
    TooTangled,
}

/// Collects warnings; a hostile file cannot make an endless list.
#[derive(Default)]
pub(super) struct Warnings {
    list: Vec<String>,
    dropped: usize,
}

impl Warnings {
    pub(super) fn add(&mut self, text: impl FnOnce() -> String) {
        if self.list.len() < MAX_WARNINGS {
            let mut text = text();
            if let Some((end, _)) = text.char_indices().nth(300) {
                text.truncate(end);
                text.push_str("..");
            }
            self.list.push(text);
        } else {
            self.dropped += 1;
        }
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        if self.dropped > 0 {
            self.list.push(format!("{} more warnings", self.dropped));
        }
        self.list
    }
}
