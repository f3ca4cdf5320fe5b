//! What a prompt needs and this machine does not have: node classes, model files, input files. For every missing model the
//! files that could take its place, likeliest first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Declared, Listings, Map, NodeRegistry, Value};

/// Entries of each kind beyond this many are counted, not kept.
const MAX_ENTRIES: usize = 1000;
/// Files offered in place of one.
const MAX_CHOICES: usize = 200;
/// Characters of a name that are compared; the last ones say most.
const MAX_COMPARED: usize = 200;
/// Names of which fewer parts in a thousand are the same are of different models.
const PLAUSIBLE: usize = 500;
/// Characters of a wanted name that are repeated.
const MAX_SHOWN: usize = 1000;

#[derive(Clone, Debug, Default)]
pub struct Missing {
    pub nodes: Vec<MissingNode>,
    pub models: Vec<MissingModel>,
    pub files: Vec<MissingFile>,
    /// What else will not pass, in words.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct MissingNode {
    pub id: Arc<str>,
    pub class: String,
    /// What people call it; the class where it has no other name.
    pub title: String,
}

#[derive(Clone, Debug)]
pub struct MissingModel {
    pub node: Arc<str>,
    pub class: String,
    pub input: Arc<str>,
    pub wanted: String,
    /// Type of model folder, e.g. `checkpoints`.
    pub folder: String,
    /// All files of that folder, likeliest first.
    pub choices: Arc<Vec<String>>,
    /// How many of these, from the first on, are plausibly the wanted one under another name.
    pub plausible: usize,
}

#[derive(Clone, Debug)]
pub struct MissingFile {
    pub node: Arc<str>,
    pub input: Arc<str>,
    pub wanted: String,
}

/// Looks through a prompt. `file_exists` knows files that no list of inputs has, as `a.png [output]`.
pub fn missing(
    prompt: &Map,
    registry: &NodeRegistry,
    listings: &dyn Listings,
    file_exists: &dyn Fn(&str) -> bool,
) -> Missing {
    let mut search = Search {
        listings,
        file_exists,
        lists: BTreeMap::new(),
        ranked: BTreeMap::new(),
        found: Missing::default(),
        left_out: 0,
    };
    for (id, node) in prompt {
        let class = node.get("class_type").and_then(Value::as_str).unwrap_or("");
        let Some(known) = registry.get(class) else {
            let title = node.get("_meta").and_then(|m| m.get("title"));
            search.node(id, class, title.and_then(Value::as_str).unwrap_or(class));
            continue;
        };
        let Some(inputs) = node.get("inputs").and_then(Value::as_map) else {
            continue;
        };
        for input in Declared::new(&known.schema(), inputs).inputs() {
            let Some(Value::Str(value)) = inputs.get(&input.name) else {
                continue;
            };
            match input.source().and_then(|s| s.split_once('/')) {
                None | Some(("devices", _)) => {
                    let entries = input.entries(listings).unwrap_or_default();
                    if !entries.is_empty() && !entries.iter().any(|e| e.as_str() == Some(value)) {
                        search.choice(id, class, &input.name, value);
                    }
                }
                Some((root, folder)) => {
                    let source = format!("{root}/{folder}");
                    if search.list(&source).iter().any(|n| **n == **value) {
                        continue;
                    }
                    if root == "input" {
                        search.file(id, &input.name, value);
                    } else {
                        let folder = if root == "vae" { "vae" } else { folder };
                        search.model(id, class, &input.name, value, (&source, folder));
                    }
                }
            }
        }
    }
    let Search {
        mut found,
        left_out,
        ..
    } = search;
    if left_out > 0 {
        found.warnings.push(format!("{left_out} more are missing"));
    }
    found
}

/// Files, likeliest first, and how many of them are plausible.
type Ranked = (Arc<Vec<String>>, usize);

struct Search<'a> {
    listings: &'a dyn Listings,
    file_exists: &'a dyn Fn(&str) -> bool,
    /// Each list is asked for once.
    lists: BTreeMap<String, Arc<Vec<String>>>,
    /// By list and wanted name: many nodes want the same.
    ranked: BTreeMap<(String, String), Ranked>,
    found: Missing,
    left_out: usize,
}

impl Search<'_> {
    fn list(&mut self, source: &str) -> Arc<Vec<String>> {
        let listings = self.listings;
        let list = self.lists.entry(source.to_owned());
        list.or_insert_with(|| Arc::new(listings.list(source)))
            .clone()
    }

    fn node(&mut self, id: &Arc<str>, class: &str, title: &str) {
        if self.found.nodes.len() == MAX_ENTRIES {
            self.left_out += 1;
            return;
        }
        self.found.nodes.push(MissingNode {
            id: id.clone(),
            class: shown(class),
            title: shown(title),
        });
    }

    fn file(&mut self, id: &Arc<str>, input: &Arc<str>, wanted: &str) {
        if wanted.len() < MAX_SHOWN && (self.file_exists)(wanted) {
            return;
        }
        if self.found.files.len() == MAX_ENTRIES {
            self.left_out += 1;
            return;
        }
        self.found.files.push(MissingFile {
            node: id.clone(),
            input: input.clone(),
            wanted: shown(wanted),
        });
    }

    fn model(
        &mut self,
        id: &Arc<str>,
        class: &str,
        input: &Arc<str>,
        wanted: &str,
        (source, folder): (&str, &str),
    ) {
        if self.found.models.len() == MAX_ENTRIES {
            self.left_out += 1;
            return;
        }
        let wanted = shown(wanted);
        let key = (source.to_owned(), wanted.clone());
        let (choices, plausible) = if let Some(known) = self.ranked.get(&key) {
            known.clone()
        } else {
            let (files, plausible) = likeliest(&wanted, &self.list(source));
            let ranked = (Arc::new(files), plausible);
            self.ranked.insert(key, ranked.clone());
            ranked
        };
        self.found.models.push(MissingModel {
            node: id.clone(),
            class: class.to_owned(),
            input: input.clone(),
            wanted,
            folder: folder.to_owned(),
            choices,
            plausible,
        });
    }

    fn choice(&mut self, id: &Arc<str>, class: &str, input: &str, value: &str) {
        if self.found.warnings.len() == MAX_ENTRIES {
            self.left_out += 1;
            return;
        }
        let value: String = value.chars().take(100).collect();
        let text = format!("node {id} ({class}): {value:?} is not one of the choices of {input}");
        self.found.warnings.push(text);
    }
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// The files, the one most like `wanted` first, and how many of them are plausible; those alike stay in their order.
fn likeliest(wanted: &str, files: &[String]) -> (Vec<String>, usize) {
    let wanted = Name::new(wanted);
    let mut scored: Vec<(Reverse<usize>, &String)> = files
        .iter()
        .map(|file| (Reverse(wanted.likeness(&Name::new(file))), file))
        .collect();
    scored.sort_by_key(|(score, _)| *score);
    scored.truncate(MAX_CHOICES);
    let plausible = scored.partition_point(|(Reverse(score), _)| *score >= PLAUSIBLE);
    let files = scored.into_iter().map(|(_, file)| file.clone());
    (files.collect(), plausible)
}

/// Where the editor's file says that models can be had: the address by the file's name in lower case. Nodes name them
/// under `properties.models`, older files once for all under `models`.
pub fn model_sources(editor: &Value) -> BTreeMap<String, String> {
    let list = |v: Option<&Value>| -> Vec<Value> {
        let list = v.and_then(Value::as_list);
        list.unwrap_or_default().to_vec()
    };
    let inner = list(editor.get("definitions").and_then(|d| d.get("subgraphs")));
    let mut found = BTreeMap::new();
    for graph in std::iter::once(editor).chain(&inner) {
        let named = list(graph.get("nodes")).into_iter().flat_map(|node| {
            let models = node.get("properties").and_then(|p| p.get("models"));
            list(models)
        });
        for model in list(graph.get("models")).into_iter().chain(named) {
            let part = |key: &str| model.get(key).and_then(Value::as_str).unwrap_or("");
            let (name, url) = (part("name"), part("url"));
            let safe = (url.starts_with("https://") || url.starts_with("http://"))
                && url.len() <= MAX_SHOWN
                && !url.chars().any(|c| c.is_control() || c.is_whitespace());
            if !name.is_empty() && safe && found.len() < MAX_ENTRIES {
                found.insert(file_name(name), url.to_owned());
            }
        }
    }
    found
}

/// The name alone, in lower case: folders differ from machine to machine.
pub fn file_name(path: &str) -> String {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    name.to_lowercase()
}

/// A file name in the parts that are compared.
struct Name {
    /// Lower case, with `/`: files of Windows and of other cases are the same file.
    path: String,
    stem: String,
    /// Pairs of neighbouring letters and digits of the stem, sorted.
    pairs: Vec<(char, char)>,
}

impl Name {
    fn new(text: &str) -> Self {
        let skip = text.chars().count().saturating_sub(MAX_COMPARED);
        let path: String = text.chars().skip(skip).collect();
        let path = path.to_lowercase().replace('\\', "/");
        let base = path.rsplit('/').next().unwrap_or(&path);
        let stem = match base.rsplit_once('.') {
            Some((stem, _)) if !stem.is_empty() => stem.to_owned(),
            _ => base.to_owned(),
        };
        let letters: Vec<char> = stem.chars().filter(|c| c.is_alphanumeric()).collect();
        let mut pairs: Vec<(char, char)> = letters.windows(2).map(|p| (p[0], p[1])).collect();
        pairs.sort_unstable();
        Self { path, stem, pairs }
    }

    fn base(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Larger is more alike: the same path, the same name elsewhere, another format of it, or so many parts in a
    /// thousand in common.
    fn likeness(&self, other: &Self) -> usize {
        if self.path == other.path {
            return 4000;
        }
        if self.base() == other.base() {
            return 3000;
        }
        if self.stem == other.stem {
            return 2000;
        }
        let all = self.pairs.len() + other.pairs.len();
        let (mut a, mut b, mut both) = (0, 0, 0);
        while a < self.pairs.len() && b < other.pairs.len() {
            match self.pairs[a].cmp(&other.pairs[b]) {
                std::cmp::Ordering::Less => a += 1,
                std::cmp::Ordering::Greater => b += 1,
                std::cmp::Ordering::Equal => {
                    both += 2;
                    a += 1;
                    b += 1;
                }
            }
        }
        both * 1000 / all.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_file_comes_first() {
        let files: Vec<String> = [
            "anything-v3.safetensors",
            "sd15/v1-5-pruned-emaonly.ckpt",
            "v1-5-pruned-emaonly-fp16.safetensors",
            "sdxl_base.safetensors",
        ]
        .map(str::to_owned)
        .to_vec();
        for (wanted, first) in [
            ("v1-5-pruned-emaonly.safetensors", 1),
            ("SD15\\V1-5-pruned-emaonly.ckpt", 1),
            ("v1-5-pruned-emaonly-fp16-x.safetensors", 2),
            ("AnythingV3.ckpt", 0),
            ("other/sdxl_base.safetensors", 3),
            ("", 0),
            ("\u{1f600}", 0),
        ] {
            let (found, _) = likeliest(wanted, &files);
            assert_eq!(found[0], files[first], "{wanted}");
            assert_eq!(found.len(), files.len());
        }
        assert!(likeliest("x", &[]).0.is_empty());
    }

    #[test]
    fn only_names_that_are_alike_are_plausible() {
        for (wanted, file, plausible) in [
            ("flux1-dev.safetensors", "fresco-starter.safetensors", false),
            ("flux1-dev.safetensors", "flux1-schnell.safetensors", false),
            (
                "flux1-dev.safetensors",
                "FLUX/flux1-dev-fp8.safetensors",
                true,
            ),
            (
                "sd_xl_base_1.0.safetensors",
                "sd_xl_refiner_1.0.safetensors",
                false,
            ),
            (
                "sd_xl_base_1.0.safetensors",
                "sub/SD_XL_base_1.0.ckpt",
                true,
            ),
            (
                "t5xxl_fp16.safetensors",
                "t5xxl_fp8_e4m3fn.safetensors",
                true,
            ),
            ("a.safetensors", "b.safetensors", false),
            ("", "b.safetensors", false),
        ] {
            let (_, count) = likeliest(wanted, &[file.to_owned()]);
            assert_eq!(count == 1, plausible, "{wanted} and {file}");
        }
    }

    #[test]
    fn addresses_of_models_are_read_wherever_the_file_has_them() {
        let file = crate::json::parse(
            r#"{"models": [{"name": "A.ckpt", "url": "https://x/a"}, {"name": "evil", "url": "javascript:1"}, 5],
                "nodes": [{"properties": {"models": [{"name": "sub/b.ckpt", "url": "http://x/b"}]}}, 7, {"properties": 1}],
                "definitions": {"subgraphs": [{"nodes": [{"properties": {"models": [{"name": "c", "url": "https://x/c"}]}}]}]}}"#,
        );
        let found = model_sources(&file.unwrap());
        let found: Vec<(&str, &str)> = found.iter().map(|(k, v)| (&**k, &**v)).collect();
        let wanted = [
            ("a.ckpt", "https://x/a"),
            ("b.ckpt", "http://x/b"),
            ("c", "https://x/c"),
        ];
        assert_eq!(found, wanted);
        assert!(model_sources(&Value::Null).is_empty());
    }
}
