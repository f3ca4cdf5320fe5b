//! Model listings.

use fresco_files::{Picture, Pixels, encode_png};

use crate::harness::{Rig, rig};

fn put(rig: &Rig, path: &str, bytes: &[u8]) {
    let path = rig.base.join("models").join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn safetensors(header: &str) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out
}

#[tokio::test]
async fn folders_and_files_are_listed() {
    let rig = rig();
    put(&rig, "vae/b.safetensors", b"x");
    put(&rig, "vae/sub/a.pt", b"x");
    put(&rig, "vae/readme.txt", b"x");
    put(&rig, "embeddings/style.v2.pt", b"x");
    let types = rig.get("/models").await.expect(200).json();
    let types: Vec<&str> = types
        .as_list()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(&types[..3], ["checkpoints", "configs", "loras"]);
    assert_eq!(
        rig.get("/models/vae").await.expect(200).text(),
        r#"["b.safetensors","sub/a.pt"]"#
    );
    for unknown in ["unet", "clip", "nothing"] {
        assert!(
            rig.get(&format!("/models/{unknown}"))
                .await
                .expect(404)
                .body
                .is_empty()
        );
        rig.get(&format!("/experiment/models/{unknown}"))
            .await
            .expect(404);
    }
    assert_eq!(
        rig.get("/embeddings").await.expect(200).text(),
        r#"["style.v2"]"#
    );
    let browse = rig.get("/experiment/models").await.expect(200).json();
    let names: Vec<&str> = browse
        .as_list()
        .unwrap()
        .iter()
        .map(|t| t.get("name").unwrap().as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"vae") && !names.contains(&"configs") && !names.contains(&"custom_nodes")
    );
    let files = rig.get("/experiment/models/vae").await.expect(200).json();
    let file = &files.as_list().unwrap()[0];
    let keys: Vec<&str> = file.as_map().unwrap().keys().map(AsRef::as_ref).collect();
    assert_eq!(keys, ["name", "pathIndex", "modified", "created", "size"]);
    let paths = rig.get("/internal/folder_paths").await.expect(200).json();
    assert!(
        paths.get("vae").unwrap().as_list().unwrap()[0]
            .as_str()
            .unwrap()
            .ends_with("/models/vae")
    );
}

#[tokio::test]
async fn metadata_is_read_from_headers() {
    let rig = rig();
    put(
        &rig,
        "vae/m.safetensors",
        &safetensors(r#"{"__metadata__":{"a":"b","c":"\u00e9"}}"#),
    );
    put(&rig, "vae/plain.safetensors", &safetensors("{}"));
    put(
        &rig,
        "vae/broken.safetensors",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
    );
    put(
        &rig,
        "unet/u.safetensors",
        &safetensors(r#"{"__metadata__":{}}"#),
    );
    let got = rig
        .get("/view_metadata/vae?filename=m.safetensors")
        .await
        .expect(200);
    assert_eq!(got.json().get("a").unwrap().as_str(), Some("b"));
    assert_eq!(got.json().get("c").unwrap().as_str(), Some("\u{e9}"));
    rig.get("/view_metadata/unet?filename=u.safetensors")
        .await
        .expect(200);
    for query in [
        "",
        "?filename=m.pt",
        "?filename=none.safetensors",
        "?filename=plain.safetensors",
        "?filename=broken.safetensors",
    ] {
        assert!(
            rig.get(&format!("/view_metadata/vae{query}"))
                .await
                .expect(404)
                .body
                .is_empty(),
            "{query}"
        );
    }
    // Steps upwards lead nowhere: the name is looked up below the folder.
    rig.get("/view_metadata/vae?filename=..%2F..%2Fm.safetensors")
        .await
        .expect(200);
    rig.get("/view_metadata/nothing?filename=m.safetensors")
        .await
        .expect(404);
}

#[tokio::test]
async fn previews_become_webp() {
    let rig = rig();
    let pixels = [9; 12];
    let png = encode_png(&Picture::new(2, 2, Pixels::Rgb, &pixels).unwrap(), &[], 4).unwrap();
    put(&rig, "loras/sub/l.safetensors", b"x");
    put(&rig, "loras/sub/l.preview.png", &png);
    put(&rig, "loras/bad.safetensors", b"x");
    put(&rig, "loras/bad.png", b"no picture");
    let got = rig
        .get("/experiment/models/preview/loras/0/sub/l.safetensors")
        .await
        .expect(200);
    assert_eq!(got.header("content-type"), Some("image/webp"));
    assert_eq!(&got.body[8..12], b"WEBP");
    for path in [
        "loras/0/bad.safetensors",
        "loras/9/sub/l.safetensors",
        "loras/x/sub/l.safetensors",
        "nothing/0/l.safetensors",
        "loras/0/none.safetensors",
        "loras/0/..%2Fvae%2Fx.safetensors",
    ] {
        rig.get(&format!("/experiment/models/preview/{path}"))
            .await
            .expect(404);
    }
}

#[tokio::test]
async fn a_file_says_what_it_is() {
    let rig = rig();
    put(&rig, "checkpoints/whole.safetensors", b"x");
    put(&rig, "checkpoints/odd.safetensors", b"x");
    let at = "/fresco/models/checkpoints";
    let whole = rig.get(&format!("{at}?filename=whole.safetensors")).await;
    let whole = whole.expect(200).json();
    assert_eq!(whole.get("family").unwrap().as_str(), Some("SDXL"));
    assert_eq!(whole.get("parts").unwrap().as_list().unwrap().len(), 3);
    let odd = rig.get(&format!("/api{at}?filename=odd.safetensors")).await;
    let odd = odd.expect(200).json();
    assert!(odd.get("family").unwrap().is_null());
    assert!(
        odd.get("reason")
            .unwrap()
            .as_str()
            .unwrap()
            .contains("odd.safetensors is no model")
    );
    rig.get(at).await.expect(400);
    rig.get(&format!("{at}?filename=none.safetensors"))
        .await
        .expect(404);
    rig.get(&format!("{at}?filename=../vae/x.pt"))
        .await
        .expect(404);
    rig.get("/fresco/models/nothing?filename=whole.safetensors")
        .await
        .expect(404);
}
