//! The `files` area: nodes run on folders of their own, and what they wrote is read back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_files::dirs::Dirs;
use fresco_files::image::{Limits, decode};
use fresco_files::metadata::read_metadata;
use fresco_files::naming::Saver;
use fresco_graph::{Map, NodeError, NodeRegistry, Resources, Value, json, map};
use fresco_nodes::types::tensor;
use fresco_tensor::{Tensor, safetensors};

use crate::compare::Comparer;
use crate::run;
use crate::store::{Area, Case, Tensors, field};

/// The one case whose input file is lossy, so that it cannot be made from the recorded output.
const LOSSY: &str = "q95.jpg";

/// A base directory with the input files of the goldens.
struct Base {
    root: tempfile::TempDir,
    resources: Arc<Resources>,
}

impl Base {
    fn new(area: &Area) -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dirs = Dirs::under(root.path());
        fs::create_dir_all(dirs.input.join("onefolder")).expect("folders");
        fs::create_dir_all(&dirs.output).expect("folders");
        let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../files/tests/pictures/load");
        for entry in fs::read_dir(&pictures).expect("the pictures of the files room") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name");
            fs::copy(&path, dirs.input.join(name)).expect("a copy");
        }
        fs::copy(pictures.join("rgb.png"), dirs.output.join("rgb.png")).expect("a copy");
        write_folder(&dirs.input.join("onefolder"), &area.tensors);
        write_latents(&dirs.input, &area.tensors);
        let mut resources = Resources::default();
        resources.insert(dirs);
        resources.insert(Saver::new());
        Self {
            root,
            resources: Arc::new(resources),
        }
    }

    fn path(&self, parts: &[&str]) -> PathBuf {
        let mut path = self.root.path().to_path_buf();
        path.extend(parts);
        path
    }
}

/// The picture and caption of the data set cases.
fn write_folder(folder: &Path, tensors: &Tensors) {
    let (shape, values) = tensors.get("LoadImageDataSetFromFolder/0/0.0");
    let pixels: Vec<u8> = values.iter().map(|v| (v * 255.0).round() as u8).collect();
    let picture = fresco_files::png_write::Picture::new(
        shape[2] as u32,
        shape[1] as u32,
        fresco_files::png_write::Pixels::Rgb,
        &pixels,
    )
    .expect("golden pictures have a size");
    let bytes = fresco_files::png_write::encode_png(&picture, &[], 4).expect("a picture");
    fs::write(folder.join("one.png"), bytes).expect("a picture");
    fs::write(folder.join("one.txt"), "  a caption\n").expect("a caption");
}

/// A latent of today and one from before files had a version.
fn write_latents(folder: &Path, tensors: &Tensors) {
    let version = Tensor::zeros([0]).expect("an empty tensor");
    let new = tensors.tensor("LoadLatent/0/0.0.samples");
    let old = tensors
        .tensor("LoadLatent/1/0.0.samples")
        .mul_scalar(0.18215);
    let both = [
        ("latent_tensor", &new),
        ("latent_format_version_0", &version),
    ];
    safetensors::write(folder.join("v0.latent"), &both, &[]).expect("a latent");
    safetensors::write(folder.join("old.latent"), &[("latent_tensor", &old)], &[])
        .expect("a latent");
}

#[test]
fn files() {
    let area = Area::load("files");
    let registry = run::registry();
    let mut found = Vec::new();
    let mut left_out = 0;
    for case in &area.cases {
        if case.inputs.get("image").and_then(Value::as_str) == Some(LOSSY) {
            left_out += 1;
            continue;
        }
        found.extend(check(case, &area, &registry));
    }
    assert_eq!(left_out, 1, "every other case has its input");
    assert!(
        found.is_empty(),
        "{} differences:\n{}",
        found.len(),
        found.join("\n")
    );
}

fn check(case: &Case, area: &Area, registry: &NodeRegistry) -> Vec<String> {
    let base = Base::new(area);
    let Some(class) = registry.get(&case.class) else {
        return vec![format!("{} is not there", case.class)];
    };
    if case.class.starts_with("Load") && case.error.is_none() {
        return run::check(
            &**class,
            case,
            &area.tensors,
            registry,
            base.resources.clone(),
        );
    }
    match (
        run::call(&**class, case, registry, base.resources.clone()),
        &case.error,
    ) {
        (Err(e), Some(expected)) => error(case, expected, &e, &base),
        (Err(e), None) => vec![format!("{}: {}: {}", case.id, e.kind(), e.message())],
        (Ok(_), Some(expected)) => vec![format!("{}: did not fail with {expected:?}", case.id)],
        (Ok((_, ui)), None) => written(case, &area.tensors, ui, &base),
    }
}

/// Errors of these nodes are compared whole; they name paths.
fn error(case: &Case, expected: &Value, actual: &NodeError, base: &Base) -> Vec<String> {
    let message = field(expected, "message").replace("{BASE}", &base.root.path().to_string_lossy());
    if actual.kind() == &*field(expected, "type") && actual.message() == message {
        return Vec::new();
    }
    vec![format!(
        "{}: {}: {:?}, golden {expected:?}",
        case.id,
        actual.kind(),
        actual.message()
    )]
}

/// Compares the files with the golden list of files.
fn written(case: &Case, tensors: &Tensors, ui: Option<Map>, base: &Base) -> Vec<String> {
    let mut comparer = Comparer::new(case, tensors);
    let ui = ui.map_or(Value::Null, Value::from);
    let shown = ["images", "latents", "3d"]
        .iter()
        .find_map(|key| ui.get(key))
        .and_then(Value::as_list)
        .unwrap_or_default()
        .to_vec();
    if let Some(expected) = &case.ui {
        // Goldens leave out lists of names that are random.
        let random = expected.get("images").is_none() && ui.get("images").is_some();
        let mut compared = ui.as_map().cloned().unwrap_or_default();
        if random {
            compared.shift_remove("images");
        }
        comparer.value(".ui", expected, &compared.into());
    }
    let expected = case
        .outputs
        .as_ref()
        .and_then(Value::as_list)
        .expect("files")[0]
        .as_list()
        .expect("a slot")[0]
        .as_list()
        .expect("a list of files")
        .to_vec();
    for (i, golden) in expected.iter().enumerate() {
        let at = format!("[{i}]");
        if let Some(path) = golden.get("path").and_then(Value::as_str) {
            let path = base.path(&["output", path]);
            comparer.value(&at, golden, &data_set_file(golden, &path));
            continue;
        }
        let Some(entry) = shown.get(i) else {
            comparer.found.push(format!("{}: no file {i}", case.id));
            continue;
        };
        let described = saved_file(golden, entry, base);
        comparer.value(&at, golden, &described);
    }
    // Nothing but finished files may be left anywhere.
    for name in all_names(base.root.path()) {
        if name.starts_with('.') || name.contains(".tmp") {
            comparer.found.push(format!("{}: left {name}", case.id));
        }
    }
    comparer.found
}

fn all_names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        names.push(name.into_owned());
        if path.is_dir() {
            names.extend(all_names(&path));
        }
    }
    names
}

fn data_set_file(golden: &Value, path: &Path) -> Value {
    let mut out = map! {"path" => golden.get("path").cloned()};
    let Ok(bytes) = fs::read(path) else {
        return Value::Null;
    };
    if golden.get("text").is_some() {
        let text = String::from_utf8(bytes).expect("text");
        out.insert("text".into(), text.into());
    } else {
        out.insert("pixels".into(), frames(&bytes).remove(0));
    }
    out.into()
}

/// What the goldens record of a saved file, as far as this golden has it.
fn saved_file(golden: &Value, entry: &Value, base: &Base) -> Value {
    let text = |key: &str| {
        entry
            .get(key)
            .and_then(Value::as_str)
            .expect(key)
            .to_owned()
    };
    let (name, sub, kind) = (text("filename"), text("subfolder"), text("type"));
    let bytes = fs::read(base.path(&[&kind, &sub, &name])).expect("the file the node named");
    let mut out = map! {"filename" => name.as_str(), "subfolder" => sub, "type" => kind};
    if golden.get("filename").and_then(Value::as_str) == Some("(random prefix)") {
        assert!(name.starts_with("ComfyUI_temp_"), "{name}");
        out.insert("filename".into(), "(random prefix)".into());
    }
    let Some(golden) = golden.as_map() else {
        return Value::Null;
    };
    for key in golden.keys() {
        let value: Value = match &**key {
            "mode" => match decode(&bytes, &Limits::default())
                .expect("a picture")
                .first()
            {
                frame if frame.has_alpha() => "RGBA".into(),
                _ => "RGB".into(),
            },
            "pixels" => frames(&bytes).into(),
            "chunks" => chunks(&bytes).into(),
            "header" => header(&bytes),
            "bytes" => shaped(&[bytes.len()], &bytes),
            "durations" => durations(&bytes).into(),
            "exif" => {
                let tags = ["272", "271", "270"];
                let found = read_metadata(&bytes);
                let pairs = tags.iter().zip(found);
                pairs
                    .map(|(tag, (k, v))| (Arc::from(*tag), format!("{k}:{v}").into()))
                    .collect::<Map>()
                    .into()
            }
            _ => continue,
        };
        out.insert(key.clone(), value);
    }
    out.into()
}

fn shaped(shape: &[usize], bytes: &[u8]) -> Value {
    let values = bytes.iter().map(|b| f32::from(*b)).collect();
    tensor(Tensor::from_vec(shape.to_vec(), values).expect("as many as the shape says"))
}

/// Pixels of every frame, `(h, w, c)`.
fn frames(bytes: &[u8]) -> Vec<Value> {
    let decoded = decode(bytes, &Limits::default()).expect("a picture");
    decoded
        .frames
        .iter()
        .map(|f| {
            let (w, h) = (f.width as usize, f.height as usize);
            if f.has_alpha() {
                shaped(&[h, w, 4], &f.rgba8())
            } else {
                shaped(&[h, w, 3], f.rgb8())
            }
        })
        .collect()
}

/// PNG chunks as the goldens list them.
fn chunks(bytes: &[u8]) -> Vec<Value> {
    let mut list: Vec<Value> = Vec::new();
    let mut rest = &bytes[8..];
    while rest.len() >= 12 {
        let length = u32::from_be_bytes(rest[..4].try_into().expect("four")) as usize;
        let kind = std::str::from_utf8(&rest[4..8]).expect("a chunk name");
        let data = &rest[8..8 + length];
        let mut chunk = map! {"type" => kind};
        if !matches!(kind, "IDAT" | "fdAT") {
            chunk.insert("length".into(), length.into());
        }
        match kind {
            "IHDR" => {
                let size = |i: usize| u32::from_be_bytes(data[i..i + 4].try_into().expect("four"));
                let mut head = vec![size(0), size(4)];
                head.extend(data[8..].iter().map(|b| u32::from(*b)));
                chunk.insert("ihdr".into(), head.into());
            }
            "tEXt" | "comf" => {
                let text: String = data.iter().map(|b| char::from(*b)).collect();
                chunk.insert("data_latin1".into(), text.into());
            }
            "acTL" | "fcTL" => {
                let hex = data
                    .iter()
                    .fold(String::new(), |hex, b| format!("{hex}{b:02x}"));
                chunk.insert("hex".into(), hex.into());
            }
            _ => {}
        }
        list.push(chunk.into());
        rest = &rest[12 + length..];
    }
    list
}

/// The header of a safetensors file.
fn header(bytes: &[u8]) -> Value {
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    json::parse_bytes(&bytes[8..8 + length]).expect("a header")
}

/// Frame durations of an animated WEBP.
fn durations(bytes: &[u8]) -> Vec<u32> {
    let mut list = Vec::new();
    let mut rest = &bytes[12..];
    while rest.len() >= 8 {
        let length = u32::from_le_bytes(rest[4..8].try_into().expect("four")) as usize;
        if &rest[..4] == b"ANMF" {
            let at = &rest[8 + 12..];
            list.push(u32::from_le_bytes([at[0], at[1], at[2], 0]));
        }
        rest = &rest[(8 + length.next_multiple_of(2)).min(rest.len())..];
    }
    list
}
