use std::sync::Arc;

use fresco_files::png_write::{Picture, Pixels, encode_png};
use fresco_graph::{Flow, Map, NodeClass, Resources, map};

use super::*;

/// A base directory with one picture in input and one in output.
fn place() -> (tempfile::TempDir, Cx) {
    let base = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(base.path());
    fs::create_dir_all(dirs.input.join("sub")).unwrap();
    fs::create_dir_all(&dirs.output).unwrap();
    let picture = Picture::new(1, 1, Pixels::Rgb, &[255, 0, 51]).unwrap();
    let bytes = encode_png(&picture, &[], 4).unwrap();
    fs::write(dirs.input.join("sub/a.png"), &bytes).unwrap();
    fs::write(dirs.output.join("b.png"), &bytes).unwrap();
    fs::write(base.path().join("secret.png"), &bytes).unwrap();
    let mut resources = Resources::default();
    resources.insert(dirs);
    (base, Cx::detached(Arc::new(resources)))
}

fn class(id: &str) -> Arc<dyn NodeClass> {
    NODES
        .iter()
        .map(|e| e.class())
        .find(|c| &*c.schema().id == id)
        .unwrap()
}

fn verdict(id: &str, args: Map, cx: &Cx) -> Verdict {
    class(id).validate(Args(args), &Map::new(), cx).unwrap()
}

const OUTSIDE: [&str; 6] = [
    "../secret.png",
    "/etc/passwd",
    "sub/../../secret.png",
    "../secret.png [output]",
    "..\\secret.png",
    "a\0.png",
];

#[test]
fn validators_look_for_the_file() {
    let (_base, cx) = place();
    for good in ["sub/a.png", "b.png [output]", "sub/a.png [input]"] {
        for id in ["LoadImage", "LoadImageMask", "LoadImageOutput"] {
            assert_eq!(verdict(id, map! {"image" => good}, &cx), Verdict::Ok);
        }
    }
    for bad in ["no.png", "b.png", "b.png [temp]"].iter().chain(&OUTSIDE) {
        assert_eq!(
            verdict("LoadImage", map! {"image" => *bad}, &cx),
            Verdict::Because(format!("Invalid image file: {bad}"))
        );
        assert_eq!(
            verdict("LoadLatent", map! {"latent" => *bad}, &cx),
            Verdict::Because(format!("Invalid latent file: {bad}"))
        );
    }
    // A linked input is not there yet.
    assert_eq!(verdict("LoadImage", Map::new(), &cx), Verdict::Ok);
}

#[test]
fn nothing_outside_is_read() {
    let (_base, cx) = place();
    for name in OUTSIDE {
        for (id, input) in [("LoadImage", "image"), ("LoadLatent", "latent")] {
            let args = || Args(map! {input => name});
            assert!(class(id).call(args(), &cx).is_err(), "{id} {name:?}");
            assert!(class(id).fingerprint(args(), &cx).is_err(), "{id} {name:?}");
        }
        let args = Args(map! {"folder" => name});
        assert!(
            class("LoadImageDataSetFromFolder").call(args, &cx).is_err(),
            "{name:?}"
        );
    }
    // A link that leads out is as bad as a path that does.
    #[cfg(unix)]
    {
        let (base, cx) = place();
        let link = base.path().join("input/link.png");
        std::os::unix::fs::symlink(base.path().join("secret.png"), link).unwrap();
        let args = Args(map! {"image" => "link.png"});
        assert!(class("LoadImage").call(args, &cx).is_err());
    }
}

#[test]
fn the_token_follows_the_content() {
    let (base, cx) = place();
    let token = || {
        let args = Args(map! {"image" => "sub/a.png"});
        class("LoadImage").fingerprint(args, &cx).unwrap()
    };
    let before = token();
    assert_eq!(before.as_str().map(str::len), Some(64));
    assert_eq!(token(), before);
    let path = base.path().join("input/sub/a.png");
    fs::write(&path, b"").unwrap();
    assert_eq!(
        token().as_str(),
        Some("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    );
    fs::remove_file(&path).unwrap();
    let args = Args(map! {"image" => "sub/a.png"});
    let error = class("LoadImage").fingerprint(args, &cx).unwrap_err();
    assert_eq!(error.kind(), "FileNotFoundError");
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    let (base, cx) = place();
    for (name, bytes) in [("empty.png", &b""[..]), ("text.png", b"hello")] {
        fs::write(base.path().join("input").join(name), bytes).unwrap();
        let args = Args(map! {"image" => name});
        let Err(error) = class("LoadImage").call(args, &cx) else {
            panic!("{name} was loaded");
        };
        assert!(error.message().contains(name), "{}", error.message());
        let args = Args(map! {"latent" => name});
        assert!(class("LoadLatent").call(args, &cx).is_err());
    }
}

#[test]
fn a_folder_without_pictures_says_so() {
    let (base, cx) = place();
    fs::create_dir_all(base.path().join("input/none")).unwrap();
    for id in [
        "LoadImageDataSetFromFolder",
        "LoadImageTextDataSetFromFolder",
    ] {
        let Err(error) = class(id).call(Args(map! {"folder" => "none"}), &cx) else {
            panic!("{id} loaded nothing");
        };
        assert_eq!(error.message(), "No valid images found in input");
        let loaded = class(id).call(Args(map! {"folder" => "sub"}), &cx).unwrap();
        assert!(matches!(loaded, Flow::Done(_)));
    }
}

#[test]
#[cfg(unix)]
fn folders_do_not_lead_outside() {
    let (base, cx) = place();
    let run = || class("LoadImageTextDataSetFromFolder").call(Args(map! {"folder" => "sub"}), &cx);
    assert!(run().is_ok());
    let text = base.path().join("input/sub/a.txt");
    fs::write(base.path().join("secret.txt"), "open sesame").unwrap();
    std::os::unix::fs::symlink(base.path().join("secret.txt"), &text).unwrap();
    assert!(run().is_err());
    fs::remove_file(&text).unwrap();
    let link = base.path().join("input/sub/b.png");
    std::os::unix::fs::symlink(base.path().join("secret.png"), link).unwrap();
    assert!(run().is_err());
}

#[test]
#[cfg(unix)]
fn what_is_no_file_is_not_opened() {
    let (base, cx) = place();
    let path = base.path().join("input/pipe.png");
    let _socket = std::os::unix::net::UnixListener::bind(path).unwrap();
    let error = resolve(&cx, "pipe.png").unwrap_err();
    assert!(
        error.message().ends_with("is not a file"),
        "{}",
        error.message()
    );
}
