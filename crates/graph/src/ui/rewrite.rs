//! What the editor does to values when a workflow is queued: alternatives and comments in prompts, names in file names.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::options::{ConvertError, Now, Options, Warnings};
use super::parse::{File, Kind, Node};
use super::room::Room;
use super::values::js_text;
use super::widgets::Widget;
use crate::Value;

/// A replaced text may not grow beyond this.
const MAX_TEXT: usize = 1 << 20;

/// Alternatives may nest this deep; a text of nothing but braces would cost the square of its length.
const MAX_BRACES: usize = 100;

/// Sets what each widget sends. Once for each node of the file, however often its subgraph is used.
pub(super) fn apply(
    file: &mut File,
    options: &Options,
    warnings: &mut Warnings,
) -> Result<(), ConvertError> {
    let mut room = Room::new(options.max_bytes);
    if options.text_replacements {
        replace_texts(file, options, warnings, &mut room)?;
    }
    let dynamic = DynamicPrompts::new(options);
    for node in file.graphs.iter_mut().flat_map(|g| &mut g.nodes) {
        for w in 0..node.widgets.len() {
            let widget = &node.widgets[w];
            if widget.sent.is_none()
                && let Some(value) = widget.value.clone()
            {
                if let Value::Str(text) = &value {
                    room.spend(text.len())?;
                }
                node.widgets[w].sent = Some(dynamic.serialise(node, widget, value));
            }
        }
    }
    Ok(())
}

/// What a widget does with its value on the way into the prompt.
pub(super) struct DynamicPrompts {
    on: bool,
    seed: u64,
}

impl DynamicPrompts {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            on: options.dynamic_prompts,
            seed: options.seed,
        }
    }

    pub(super) fn serialise(&self, node: &Node, widget: &Widget, value: Value) -> Value {
        match &value {
            Value::Str(s) if self.on && widget.dynamic_prompts => {
                // Seeded by place, so that adding a node does not change what the others choose.
                let mut random = Random::new(self.seed, &node.id, &widget.name);
                choose(&strip_comments(s), &mut random).into()
            }
            // Files from the first weeks of the reference.
            Value::Str(s)
                if matches!(&*node.ty, "KSampler" | "KSamplerAdvanced")
                    && &*widget.name == "sampler_name"
                    && s.starts_with("sample_") =>
            {
                s["sample_".len()..].into()
            }
            _ => value,
        }
    }
}

/// SplitMix64 over a hash of the place: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64, node: &str, widget: &str) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ seed;
        for byte in node.bytes().chain([0]).chain(widget.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(hash)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// Removes `/* .. */` and `// ..` to the end of the line; an unclosed block stays.
fn strip_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Once no end follows, none follows later either; without this a text of openings costs its square.
    let mut closes = true;
    while let Some(at) = rest.find('/') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = rest
                .find(['\n', '\r', '\u{2028}', '\u{2029}'])
                .map_or("", |end| &rest[end..]);
            continue;
        }
        if closes && rest.starts_with("/*") {
            if let Some(end) = rest[2..].find("*/") {
                rest = &rest[end + 4..];
                continue;
            }
            closes = false;
        }
        out.push('/');
        rest = &rest[1..];
    }
    out.push_str(rest);
    out
}

/// Replaces each `{a|b|c}` by one alternative. A stack instead of recursion, since braces may nest as deep as the text is
/// long; the alternatives not taken are dropped as soon as their block ends.
fn choose(text: &str, random: &mut Random) -> String {
    // Each open block: its alternatives so far, the last still growing.
    let mut blocks: Vec<Vec<String>> = vec![vec![String::new()]];
    let mut chars = text.chars();
    let close = |blocks: &mut Vec<Vec<String>>, random: &mut Random| {
        let mut options = blocks
            .pop()
            .expect("only called with a block beside the outermost");
        let taken = options.swap_remove(random.below(options.len()));
        grow(blocks).push_str(&taken);
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let text = grow(&mut blocks);
                match chars.next() {
                    Some(escaped @ ('{' | '}' | '|')) => text.push(escaped),
                    Some(other) => text.extend(['\\', other]),
                    None => text.push('\\'),
                }
            }
            '{' if blocks.len() > MAX_BRACES => return text.into(),
            '{' => blocks.push(vec![String::new()]),
            '}' if blocks.len() > 1 => close(&mut blocks, random),
            '|' if blocks.len() > 1 => {
                let block = blocks.last_mut().expect("the outermost never goes");
                block.push(String::new());
            }
            _ => grow(&mut blocks).push(c),
        }
    }
    // A block that is never closed ends with the text.
    while blocks.len() > 1 {
        close(&mut blocks, random);
    }
    std::mem::take(grow(&mut blocks))
}

fn grow(blocks: &mut [Vec<String>]) -> &mut String {
    blocks
        .last_mut()
        .and_then(|b| b.last_mut())
        .expect("there always is a block, and a block always has an alternative")
}

/// Fills file names of Save nodes and the values of primitive nodes that ask for it.
fn replace_texts(
    file: &mut File,
    options: &Options,
    warnings: &mut Warnings,
    room: &mut Room,
) -> Result<(), ConvertError> {
    let wants = |node: &Node| match &node.kind {
        Kind::Known if node.ty.starts_with("Save") || node.ty.ends_with("Save") => {
            let value = node
                .widget("filename_prefix")
                .and_then(|w| w.value.as_ref());
            value.and_then(Value::as_str).map(Arc::<str>::from)
        }
        Kind::Primitive(Some(Value::Str(s))) => node
            .raw
            .get("properties")
            .and_then(|p| p.get("Run widget replace on values"))
            .is_some_and(Value::truthy)
            .then(|| s.clone()),
        _ => None,
    };
    let mut places = Vec::new();
    for (g, graph) in file.graphs.iter().enumerate() {
        for (n, node) in graph.nodes.iter().enumerate() {
            if let Some(text) = wants(node).filter(|t| t.contains('%')) {
                places.push((g, n, text));
            }
        }
    }
    if places.is_empty() {
        return Ok(());
    }
    let names = Names::new(file);
    let done: Vec<Option<String>> = places
        .iter()
        .map(|(_, _, text)| replace(text, &names, options, room))
        .collect::<Result<_, _>>()?;
    for ((g, n, text), result) in places.into_iter().zip(done) {
        let node = &mut file.graphs[g].nodes[n];
        let Some(result) = result else {
            warnings.add(|| format!("node {}: the text {text:.40?} grows too long", node.label()));
            continue;
        };
        if let Kind::Primitive(value) = &mut node.kind {
            *value = Some(result.into());
        } else if let Some(widget) = node
            .widgets
            .iter_mut()
            .find(|w| &*w.name == "filename_prefix")
        {
            widget.sent = Some(result.into());
        }
    }
    Ok(())
}

/// Which node a `%Name.widget%` means.
struct Names {
    by_property: HashMap<Arc<str>, HashMap<Arc<str>, Value>>,
    by_title: HashMap<Arc<str>, HashMap<Arc<str>, Value>>,
}

impl Names {
    fn new(file: &File) -> Self {
        let mut names = Self {
            by_property: HashMap::new(),
            by_title: HashMap::new(),
        };
        for node in file.graphs.iter().flat_map(|g| &g.nodes) {
            let values = || {
                node.widgets
                    .iter()
                    .map(|w| (w.name.clone(), w.value.clone().unwrap_or_default()))
                    .collect()
            };
            let property = node
                .raw
                .get("properties")
                .and_then(|p| p.get("Node name for S&R"));
            if let Some(Value::Str(name)) = property {
                names.by_property.entry(name.clone()).or_insert_with(values);
            }
            if let Some(title) = &node.title {
                names.by_title.entry(title.clone()).or_insert_with(values);
            }
        }
        names
    }

    fn value(&self, node: &str, widget: &str) -> Option<&Value> {
        self.by_property
            .get(node)
            .or_else(|| self.by_title.get(node))?
            .get(widget)
    }
}

/// Fills the `%..%` of a text that can be filled; none if the result is too long.
fn replace(
    text: &str,
    names: &Names,
    options: &Options,
    room: &mut Room,
) -> Result<Option<String>, ConvertError> {
    room.spend(text.len())?;
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('%') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let Some(end) = rest[1..].find('%').filter(|e| *e > 0) else {
            out.push('%');
            rest = &rest[1..];
            continue;
        };
        let inner = &rest[1..=end];
        match filled(inner, names, options) {
            Some(value) => {
                room.spend(value.len())?;
                out.push_str(&value);
            }
            None => out.push_str(&rest[..end + 2]),
        }
        rest = &rest[end + 2..];
        if out.len() > MAX_TEXT {
            return Ok(None);
        }
    }
    out.push_str(rest);
    Ok(Some(out))
}

fn filled(inner: &str, names: &Names, options: &Options) -> Option<String> {
    let mut parts = inner.split('.');
    if let (Some(node), Some(widget), None) = (parts.next(), parts.next(), parts.next()) {
        let value = names.value(node, widget)?;
        let text = if value.is_null() {
            String::new()
        } else {
            js_text(value)
        };
        let unsafe_char = |c: char| "/?<>\\:*|\"".contains(c) || c < ' ' || c == '\u{7f}';
        return Some(text.replace(unsafe_char, "_"));
    }
    let format = inner.strip_prefix("date:")?;
    options.now.map(|now| date(format, &now))
}

/// `yyyy`, `yy`, and `M d h m s` in one or two digits; everything else as written.
fn date(format: &str, now: &Now) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(c) = rest.chars().next() {
        // No letter counts more than four times; looking further would cost the square of the text.
        let run = rest.chars().take(4).take_while(|x| *x == c).count();
        let (value, longest) = match c {
            'd' => (now.day, 2),
            'M' => (now.month, 2),
            'h' => (now.hour, 2),
            'm' => (now.minute, 2),
            's' => (now.second, 2),
            'y' if run > 1 => (now.year, 4),
            _ => (0, 0),
        };
        let take = run.min(longest);
        match (c, take) {
            (_, 0) => out.push(c),
            ('y', 2) => {
                let _ = write!(out, "{:02}", value % 100);
            }
            ('y', 3) => out.push_str("yyy"),
            _ => {
                let _ = write!(out, "{value:0take$}");
            }
        }
        rest = &rest[if take == 0 { c.len_utf8() } else { take }..];
    }
    out
}
