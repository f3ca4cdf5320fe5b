use std::fs;
use std::sync::{Arc, Mutex};

use fresco_files::metadata::read_metadata;
use fresco_graph::{Args, Flow, InstanceState, NodeOutput, Progress, Resources, Services};

use super::*;
use crate::types::tensor;

/// A base directory and what nodes need to save into it.
struct SaveFolder {
    base: tempfile::TempDir,
    resources: Resources,
}

impl SaveFolder {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let mut resources = Resources::default();
        resources.insert(Dirs::under(base.path()));
        resources.insert(Saver::new());
        Self { base, resources }
    }

    fn cx(&self) -> Cx {
        Cx::detached(Arc::new(self.resources.clone()))
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.base.path().join(folder))
            .map(|entries| {
                entries
                    .map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }
}

fn run(class: &str, args: Map, cx: &Cx) -> Result<NodeOutput, NodeError> {
    let found = NODES
        .iter()
        .map(|e| e.class())
        .find(|c| &*c.schema().id == class)
        .unwrap();
    match found.call(Args(args), cx)? {
        Flow::Done(out) => Ok(out),
        Flow::Later(_) => panic!("savers are not asynchronous"),
    }
}

fn grey(count: usize) -> Value {
    tensor(Tensor::full([count, 4, 4, 3], 0.5).unwrap())
}

#[test]
fn concurrent_saves_share_no_name() {
    let place = SaveFolder::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let args = map! {"images" => grey(2), "filename_prefix" => "x"};
                    run("SaveImage", args, &place.cx()).unwrap();
                }
            });
        }
    });
    let names = place.names("output");
    assert_eq!(names.len(), 40, "{names:?}");
    assert_eq!(names[0], "x_00001_.png");
    assert_eq!(names[39], "x_00040_.png");
}

#[test]
fn metadata_can_be_switched_off_and_odd_keys_cost_no_picture() {
    let mut place = SaveFolder::new();
    let hidden = |cx: &mut Cx| {
        cx.hidden.prompt = map! {"1" => "p"}.into();
        cx.hidden.extra_pnginfo = map! {"workflow" => 1, "" => 2, "schl\u{1f600}" => 3}.into();
    };
    let args = || map! {"images" => grey(1), "filename_prefix" => "x"};
    let mut cx = place.cx();
    hidden(&mut cx);
    run("SaveImage", args(), &cx).unwrap();
    place.resources.insert(SaveOptions {
        disable_metadata: true,
    });
    let mut cx = place.cx();
    hidden(&mut cx);
    run("SaveImage", args(), &cx).unwrap();
    let text = |name: &str| {
        let path = place.base.path().join("output").join(name);
        let mut found = read_metadata(&fs::read(path).unwrap());
        found.sort();
        found
    };
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    assert_eq!(
        text("x_00001_.png"),
        [pair("prompt", "{\"1\": \"p\"}"), pair("workflow", "1")]
    );
    assert_eq!(text("x_00002_.png"), []);
}

/// What a file has is what each value is in 8 bits, whatever picture of a batch it belongs to and whichever thread made it.
#[test]
fn a_batch_is_saved_in_order_with_every_pixel() {
    let place = SaveFolder::new();
    for (shape, class, folder) in [
        ([3, 300, 201, 3], "SaveImage", "output"),
        ([5, 41, 7, 4], "SaveImage", "output"),
        ([2, 300, 201, 3], "PreviewImage", "temp"),
    ] {
        let value = |i: usize| (i * 7919 % 10_007) as f32 / 9000.0 - 0.05;
        let images = Tensor::from_fn(shape, value).unwrap();
        let prefix = format!("batch{}", shape[3]);
        let args = map! {"images" => tensor(images), "filename_prefix" => prefix};
        let output = run(class, args, &place.cx()).unwrap();
        let ui = output.ui.unwrap();
        let entries = ui.get("images").and_then(Value::as_list).unwrap();
        assert_eq!(entries.len(), shape[0]);
        let size: usize = shape[1..].iter().product();
        for (number, entry) in entries.iter().enumerate() {
            let entry = entry.as_map().unwrap();
            let name = entry.get("filename").and_then(Value::as_str).unwrap();
            assert!(
                name.ends_with(&format!("_{:05}_.png", number + 1)),
                "{name}"
            );
            let bytes = fs::read(place.base.path().join(folder).join(name)).unwrap();
            let picture = fresco_files::decode(&bytes, &fresco_files::Limits::default()).unwrap();
            let frame = picture.first();
            let found = match shape[3] {
                3 => frame.rgb8().to_vec(),
                _ => frame.rgba8(),
            };
            let wanted = (number * size..(number + 1) * size).map(|i| to_u8(value(i)));
            assert!(found.into_iter().eq(wanted), "{class} {number}");
        }
    }
}

#[test]
fn a_preview_node_keeps_its_prefix_and_another_has_its_own() {
    let place = SaveFolder::new();
    let args = || map! {"images" => grey(1)};
    let cx = place.cx();
    run("PreviewImage", args(), &cx).unwrap();
    run("PreviewImage", args(), &cx).unwrap();
    let mut other = place.cx();
    other.state = InstanceState::default();
    run("PreviewImage", args(), &other).unwrap();
    let names = place.names("temp");
    let prefix = |name: &str| name[..name.len() - "_00001_.png".len()].to_owned();
    let mut prefixes: Vec<String> = names.iter().map(|n| prefix(n)).collect();
    prefixes.dedup();
    assert_eq!((names.len(), prefixes.len()), (3, 2), "{names:?}");
    assert!(names.iter().any(|n| n.ends_with("_00002_.png")));
    assert!(place.names("output").is_empty());
}

#[test]
fn nothing_leaves_the_output_folder() {
    let place = SaveFolder::new();
    for prefix in ["../x", "/tmp/x", "a/../../x", "x\0y", "..\\x"] {
        let args = map! {"images" => grey(1), "filename_prefix" => prefix};
        let error = run("SaveImage", args, &place.cx());
        assert!(error.is_err(), "{prefix:?}");
    }
    for folder in ["../x", "/tmp/x", "a/../../x"] {
        let args = map! {
            "images" => vec![grey(1)], "folder_name" => vec![folder], "filename_prefix" => vec!["p"],
        };
        assert!(
            run("SaveImageDataSetToFolder", args, &place.cx()).is_err(),
            "{folder:?}"
        );
    }
    let args = map! {
        "images" => vec![grey(1)], "folder_name" => vec!["ok"], "filename_prefix" => vec!["../p"],
    };
    assert!(run("SaveImageDataSetToFolder", args, &place.cx()).is_err());
    assert!(!place.base.path().join("p_00000.png").exists());
}

#[test]
fn bad_pictures_are_errors_and_leave_no_file() {
    let place = SaveFolder::new();
    for shape in [
        vec![0, 4, 4, 3],
        vec![1, 0, 4, 3],
        vec![1, 4, 4, 2],
        vec![4, 4, 3],
    ] {
        let images = tensor(Tensor::zeros(shape.clone()).unwrap());
        for class in ["SaveImage", "SaveAnimatedPNG", "SaveAnimatedWEBP"] {
            let args = map! {
                "images" => images.clone(), "filename_prefix" => "x", "fps" => 6.0, "compress_level" => 4,
                "lossless" => true, "quality" => 80, "method" => "default",
            };
            assert!(run(class, args, &place.cx()).is_err(), "{class} {shape:?}");
        }
    }
    for fps in [0.0, -1.0, f64::NAN] {
        let args = map! {
            "images" => grey(2), "filename_prefix" => "x", "fps" => fps, "compress_level" => 4,
        };
        assert!(run("SaveAnimatedPNG", args, &place.cx()).is_err(), "{fps}");
    }
    assert!(place.names("output").is_empty());
}

/// Records the pictures a node sends.
#[derive(Default)]
struct Recorder(Mutex<Vec<(f64, f64, Vec<u8>)>>);

impl Services for Recorder {
    fn progress(&self, _: &str, _: &str, p: Progress) {
        let bytes = p.preview.map(|v| v.bytes.to_vec()).unwrap_or_default();
        self.0.lock().unwrap().push((p.value, p.max, bytes));
    }
    fn interrupted(&self) -> bool {
        false
    }
    fn send(&self, _: &str, _: Value, _: Option<&str>) {}
    fn text(&self, _: &str, _: &str) {}
    fn set_flag(&self, _: &str, _: Value) {}
}

#[test]
fn the_socket_saver_sends_every_picture_and_writes_none() {
    let place = SaveFolder::new();
    let recorder = Arc::new(Recorder::default());
    let mut cx = place.cx();
    cx.services = recorder.clone();
    run("SaveImageWebsocket", map! {"images" => grey(2)}, &cx).unwrap();
    let sent = recorder.0.lock().unwrap();
    let steps: Vec<_> = sent.iter().map(|(v, m, _)| (*v, *m)).collect();
    assert_eq!(steps, [(0.0, 2.0), (1.0, 2.0)]);
    assert!(sent.iter().all(|(_, _, b)| b.starts_with(b"\x89PNG")));
    assert!(place.names("output").is_empty());
}
