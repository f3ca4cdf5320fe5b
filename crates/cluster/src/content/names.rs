//! Which files a prompt reads, and which files a result names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fresco_files::folders::common_name;
use fresco_files::{DirType, Dirs, annotated, contain, contain_file, walk};
use fresco_graph::{Declared, Map, NodeRegistry, Value};

/// Longer texts are no names of files.
const LONGEST: usize = 1024;
/// Deeper values than this name no files.
const DEEPEST: usize = 32;
/// Files of one prompt or result; a folder with more is not sent whole.
const MOST: usize = 10_000;

/// A file in one of the directories that clients know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    pub dir: DirType,
    /// Below that directory, with `/` on all systems.
    pub name: String,
    pub path: PathBuf,
}

/// Each file once, in order.
#[derive(Default)]
struct Files(BTreeMap<(DirType, String), PathBuf>);

impl Files {
    fn add(&mut self, dirs: &Dirs, dir: DirType, name: &str) {
        if self.0.len() >= MOST {
            return;
        }
        if let Ok(path) = contain_file(dirs.get(dir), name) {
            let name = name.replace('\\', "/");
            self.0.insert((dir, name), path);
        }
    }

    fn list(self) -> Vec<NamedFile> {
        let file = |((dir, name), path)| NamedFile { dir, name, path };
        self.0.into_iter().map(file).collect()
    }
}

/// The files that inputs of a prompt name, marked (`a.png [output]`) or in the input directory, as far as they are there. Also of
/// inputs that are plain text, since packs have their own ways to ask for a file; and all files of a folder that is named by an
/// input which lists folders.
pub fn named_inputs(prompt: &Map, registry: &NodeRegistry, dirs: &Dirs) -> Vec<NamedFile> {
    let mut files = Files::default();
    for node in prompt.values() {
        let Some(inputs) = node.get("inputs").and_then(Value::as_map) else {
            continue;
        };
        for value in inputs.values() {
            if value.as_link().is_none() {
                each_text(value, DEEPEST, &mut |text| named(text, dirs, &mut files));
            }
        }
        let class = node.get("class_type").and_then(Value::as_str);
        let Some(class) = class.and_then(|class| registry.get(class)) else {
            continue;
        };
        for input in Declared::new(&class.schema(), inputs).inputs() {
            let value = inputs.get(&input.name).and_then(Value::as_str);
            match (input.source(), value) {
                (Some("input/folders"), Some(folder)) => folder_files(folder, dirs, &mut files),
                // Whatever its name looks like.
                (Some(source), Some(text)) if source.starts_with("input/") => {
                    let (name, dir) = annotated::split(text);
                    files.add(dirs, dir.unwrap_or(DirType::Input), name);
                }
                _ => {}
            }
        }
    }
    files.list()
}

fn named(text: &str, dirs: &Dirs, files: &mut Files) {
    if text.len() > LONGEST {
        return;
    }
    let (name, dir) = annotated::split(text);
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    // Most texts are no names, and asking the disk about each would cost more than the rest of a small job.
    let extension = last.rsplit_once('.').map(|(_, extension)| extension);
    let like_a_name = extension.is_some_and(|e| {
        (1..=16).contains(&e.len()) && e.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    if dir.is_some() || like_a_name {
        files.add(dirs, dir.unwrap_or(DirType::Input), name);
    }
}

fn folder_files(folder: &str, dirs: &Dirs, files: &mut Files) {
    let Ok(root) = contain(&dirs.input, folder) else {
        return;
    };
    let below = walk::subfolders(&root);
    for inner in std::iter::once(String::new()).chain(below) {
        let inner = common_name(&inner);
        let within = if inner.is_empty() {
            folder.to_owned()
        } else {
            format!("{folder}/{inner}")
        };
        for name in walk::top_files(&root.join(&inner)) {
            files.add(dirs, DirType::Input, &format!("{within}/{name}"));
        }
    }
}

fn each_text(value: &Value, depth: usize, take: &mut dyn FnMut(&str)) {
    match value {
        Value::Str(text) => take(text),
        Value::List(list) if depth > 0 => {
            for one in list.iter() {
                each_text(one, depth - 1, take);
            }
        }
        Value::Map(map) if depth > 0 => {
            for one in map.values() {
                each_text(one, depth - 1, take);
            }
        }
        _ => {}
    }
}

/// The directory and name of a file that a result shows.
pub(super) fn shown_file(map: &Map) -> Option<(DirType, String)> {
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    let dir = DirType::parse(text("type")?)?;
    let filename = text("filename")?;
    let name = match text("subfolder").unwrap_or_default() {
        "" => filename.to_owned(),
        folder => format!("{}/{filename}", folder.replace('\\', "/")),
    };
    Some((dir, name))
}

/// The files that a result names: every `{filename, subfolder, type}` in it, as far as they are there.
pub fn named_outputs(value: &Value, dirs: &Dirs) -> Vec<NamedFile> {
    let mut files = Files::default();
    each_shown(value, DEEPEST, &mut |dir, name| {
        files.add(dirs, dir, name);
    });
    files.list()
}

fn each_shown(value: &Value, depth: usize, take: &mut dyn FnMut(DirType, &str)) {
    match value {
        Value::List(list) if depth > 0 => {
            for one in list.iter() {
                each_shown(one, depth - 1, take);
            }
        }
        Value::Map(map) if depth > 0 => {
            if let Some((dir, name)) = shown_file(map) {
                take(dir, &name);
            }
            for one in map.values() {
                each_shown(one, depth - 1, take);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fresco_graph::{Cx, Node, NodeOutput, NodeResult, entry, map};

    use super::*;

    /// Reads all pictures of a folder.
    #[derive(Node)]
    #[node(id = "ReadFolder", outputs("INT"))]
    struct ReadFolder {
        #[input(listed = "input/folders")]
        folder: String,
    }

    impl Node for ReadFolder {
        fn run(self, _: &Cx) -> NodeResult {
            Ok(NodeOutput::one(self.folder.len() as i64))
        }
    }

    fn names(files: &[NamedFile]) -> Vec<String> {
        let line = |f: &NamedFile| format!("{} {}", f.dir.as_str(), f.name);
        files.iter().map(line).collect()
    }

    fn setup() -> (tempfile::TempDir, Dirs) {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(dir.path());
        for file in [
            "input/a.png",
            "input/s/b.png",
            "input/s/t/c.png",
            "input/plain",
            "output/o.png",
            "temp/t.png",
            "output/s/x_00001_.png",
            "secret.png",
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        (dir, dirs)
    }

    #[test]
    fn files_of_a_prompt() {
        let (_dir, dirs) = setup();
        let mut registry = NodeRegistry::new();
        registry.add(&[entry::<ReadFolder>()]);
        let node = |class: &str, inputs: Map| {
            Value::from(map! {"class_type" => class, "inputs" => inputs})
        };
        let find = |prompt: Map| names(&named_inputs(&prompt, &registry, &dirs));
        let prompt = map! {
            "a.png" => node("X", map! {"image" => "a.png", "again" => "a.png", "no" => "nothing.png"}),
            "2" => node("X", map! {"link" => Value::from(vec![Value::from("a.png"), Value::Int(0)]),
                "image" => "o.png [output]"}),
            "3" => node("X", map! {"deep" => map! {"list" => vec!["t.png [temp]"]}}),
            "4" => node("X", map! {"text" => "../secret.png", "more" => "plain", "folder" => "s"}),
        };
        let want = ["output o.png", "temp t.png", "input a.png"];
        assert_eq!(find(prompt), want);
        let prompt = map! {"1" => node("ReadFolder", map! {"folder" => "s"})};
        assert_eq!(find(prompt), ["input s/b.png", "input s/t/c.png"]);
        assert!(find(map! {"1" => Value::Null}).is_empty());
    }

    #[test]
    fn files_of_a_result() {
        let (_dir, dirs) = setup();
        let image = |name: &str, folder: &str, kind: &str| {
            Value::from(map! {"filename" => name, "subfolder" => folder, "type" => kind})
        };
        let result = Value::from(map! {
            "images" => vec![
                image("x_00001_.png", "s", "output"),
                image("t.png", "", "temp"),
                image("gone.png", "", "temp"),
                image("secret.png", "..", "output"),
                image("a.png", "", "elsewhere"),
            ],
            "text" => vec!["a.png"],
        });
        let found = named_outputs(&result, &dirs);
        assert_eq!(names(&found), ["output s/x_00001_.png", "temp t.png"]);
    }
}
