//! Uploads and `/view`.

use fresco_files::{Limits, Picture, Pixels, decode, encode_png, read_metadata};

use crate::harness::{HttpAnswer, Rig, form, rig, rig_with};

async fn upload(
    rig: &Rig,
    path: &str,
    fields: &[(&str, &str)],
    file: Option<(&str, &[u8])>,
) -> HttpAnswer {
    let (kind, body) = form(fields, file);
    rig.ask("POST", path, &[("content-type", &kind)], body)
        .await
}

fn name(got: &HttpAnswer) -> String {
    got.json().get("name").unwrap().as_str().unwrap().to_owned()
}

/// A small picture with alpha.
fn png(alpha: u8, text: &[(String, String)]) -> Vec<u8> {
    let pixels: Vec<u8> = (0..4u8).flat_map(|i| [i * 40, 10, 200, alpha]).collect();
    let picture = Picture::new(2, 2, Pixels::Rgba, &pixels).unwrap();
    encode_png(&picture, text, 4).unwrap()
}

#[tokio::test]
async fn the_same_file_is_not_stored_twice() {
    let rig = rig();
    let put = async |bytes: &[u8]| {
        upload(&rig, "/upload/image", &[], Some(("a.png", bytes)))
            .await
            .expect(200)
    };
    let got = put(b"one").await;
    assert_eq!(
        got.text(),
        r#"{"name":"a.png","subfolder":"","type":"input"}"#
    );
    assert_eq!(name(&put(b"one").await), "a.png");
    assert_eq!(name(&put(b"two").await), "a (1).png");
    assert_eq!(name(&put(b"two").await), "a (1).png");
    assert_eq!(name(&put(b"three").await), "a (2).png");
    let fields = [("overwrite", "true"), ("subfolder", ""), ("type", "input")];
    let got = upload(&rig, "/api/upload/image", &fields, Some(("a.png", b"four")))
        .await
        .expect(200);
    assert_eq!(name(&got), "a.png");
    assert_eq!(
        std::fs::read(rig.dirs.input.join("a.png")).unwrap(),
        b"four"
    );
}

#[tokio::test]
async fn uploads_go_where_they_may() {
    let rig = rig();
    let fields = [("subfolder", "x/y"), ("type", "temp")];
    let got = upload(&rig, "/upload/image", &fields, Some(("a.bin", b"1")))
        .await
        .expect(200);
    assert_eq!(
        got.text(),
        r#"{"name":"a.bin","subfolder":"x/y","type":"temp"}"#
    );
    assert!(rig.dirs.temp.join("x/y/a.bin").exists());
    for (fields, file) in [
        (&[("subfolder", "..")][..], Some(("q.png", &b"x"[..]))),
        (&[], Some(("../q.png", b"x"))),
        (&[], Some(("/tmp/q.png", b"x"))),
        (&[], Some(("con.png", b"x"))),
        (&[("type", "models")], Some(("q.png", b"x"))),
        (&[], Some(("", b"x"))),
        (&[("type", "input")], None),
    ] {
        upload(&rig, "/upload/image", fields, file)
            .await
            .expect(400);
    }
    let long = "x".repeat(4096);
    upload(&rig, "/upload/image", &[], Some((&long, b"x")))
        .await
        .expect(400);
    rig.post("/upload/image", "not a form").await.expect(400);
    assert_eq!(
        std::fs::read_dir(&rig.dirs.input).unwrap().count(),
        0,
        "nothing was written"
    );
    assert!(!rig.base.join("q.png").exists());
}

#[tokio::test]
async fn a_mask_replaces_the_alpha() {
    let rig = rig();
    let text = [("workflow".to_owned(), "{}".to_owned())];
    std::fs::write(rig.dirs.output.join("o.png"), png(255, &text)).unwrap();
    let reference = r#"{"filename":"o.png","type":"output"}"#;
    let fields = [("original_ref", reference), ("type", "input")];
    let got = upload(
        &rig,
        "/upload/mask",
        &fields,
        Some(("m.png", &png(77, &[]))),
    )
    .await
    .expect(200);
    assert_eq!(name(&got), "m.png");
    let bytes = std::fs::read(rig.dirs.input.join("m.png")).unwrap();
    let decoded = decode(&bytes, &Limits::default()).unwrap();
    assert_eq!(decoded.first().alpha8(), Some(&[77; 4][..]));
    assert_eq!(&decoded.first().rgb8()[..3], [0, 10, 200]);
    assert_eq!(read_metadata(&bytes), text);

    let mask = png(1, &[]);
    for (reference, status) in [
        (r#"{"filename":""}"#, 400),
        (r#"{"filename":"/o.png"}"#, 400),
        (r#"{"filename":"../o.png"}"#, 400),
        (r#"{"filename":"o.png","type":"x"}"#, 400),
        (r#"{"filename":"o.png","subfolder":".."}"#, 403),
        (r#"{"filename":"none.png"}"#, 404),
        (r"{}", 400),
        ("{", 400),
    ] {
        let fields = [("original_ref", reference)];
        upload(&rig, "/upload/mask", &fields, Some(("n.png", &mask)))
            .await
            .expect(status);
    }
    upload(&rig, "/upload/mask", &[], Some(("n.png", &mask)))
        .await
        .expect(400);
    let fields = [("original_ref", reference)];
    upload(
        &rig,
        "/upload/mask",
        &fields,
        Some(("n.png", b"no picture")),
    )
    .await
    .expect(400);
    assert!(!rig.dirs.input.join("n.png").exists());
}

#[tokio::test]
async fn view_finds_and_refuses() {
    let rig = rig();
    std::fs::create_dir_all(rig.dirs.output.join("sub")).unwrap();
    std::fs::write(rig.dirs.output.join("sub/a.png"), "out").unwrap();
    std::fs::write(rig.dirs.output.join("a.png"), "top").unwrap();
    std::fs::write(rig.dirs.input.join("a.png"), "in").unwrap();
    for (query, status, text) in [
        ("filename=a.png", 200, "top"),
        ("filename=a.png&type=input&rand=0.3", 200, "in"),
        ("filename=a.png%20[input]", 200, "in"),
        ("filename=a.png&subfolder=sub", 200, "out"),
        ("filename=x/y/a.png", 200, "top"),
        ("", 404, ""),
        ("filename=none.png", 404, ""),
        ("filename=sub", 404, ""),
        ("filename=a.png&subfolder=..", 403, ""),
        ("filename=a.png&subfolder=/etc", 403, ""),
    ] {
        let got = rig.get(&format!("/view?{query}")).await;
        assert_eq!((got.status, got.text()), (status, text), "{query}");
    }
    for query in [
        "filename=",
        "filename=/a.png",
        "filename=..%2Fa.png",
        "filename=a..png",
        "filename=a.png&type=x",
    ] {
        rig.get(&format!("/view?{query}")).await.expect(400);
    }
    let got = rig.get("/api/view?filename=a.png").await;
    assert_eq!(
        got.header("content-disposition"),
        Some("filename=\"a.png\"")
    );
    assert_eq!(got.header("content-type"), Some("image/png"));
}

#[cfg(unix)]
#[tokio::test]
async fn links_out_of_the_folder_are_not_followed() {
    let rig = rig();
    std::fs::write(rig.base.join("secret.txt"), "secret").unwrap();
    std::os::unix::fs::symlink(rig.base.join("secret.txt"), rig.dirs.output.join("l.txt")).unwrap();
    std::os::unix::fs::symlink(&rig.base, rig.dirs.output.join("up")).unwrap();
    rig.get("/view?filename=l.txt").await.expect(403);
    rig.get("/view?filename=secret.txt&subfolder=up")
        .await
        .expect(403);
}

#[tokio::test]
async fn user_content_is_shown_but_does_not_run() {
    let rig = rig();
    for (file, kind, download) in [
        ("a.html", "application/octet-stream", true),
        ("a.xhtml", "application/octet-stream", true),
        ("a.js", "application/octet-stream", true),
        ("a.css", "application/octet-stream", true),
        ("a.xml", "application/xml", true),
        ("a.svg", "image/svg+xml", false),
        ("a.json", "application/json", false),
        ("a.mp4", "video/mp4", false),
        ("a.weird", "application/octet-stream", false),
    ] {
        std::fs::write(rig.dirs.output.join(file), "x").unwrap();
        let got = rig.get(&format!("/view?filename={file}")).await.expect(200);
        assert_eq!(got.header("content-type"), Some(kind), "{file}");
        assert!(
            got.header("content-security-policy")
                .unwrap()
                .starts_with("sandbox"),
            "{file}"
        );
        assert_eq!(
            got.header("x-content-type-options"),
            Some("nosniff"),
            "{file}"
        );
        let disposition = got.header("content-disposition").unwrap();
        assert_eq!(disposition.starts_with("attachment; "), download, "{file}");
        assert!(
            disposition.ends_with(&format!("filename=\"{file}\"")),
            "{file}"
        );
    }
}

#[tokio::test]
async fn pictures_can_be_had_in_other_forms() {
    let rig = rig();
    std::fs::write(rig.dirs.output.join("p.png"), png(100, &[])).unwrap();
    let get = async |query: &str| {
        rig.get(&format!("/view?filename=p.png&{query}"))
            .await
            .expect(200)
    };
    for (query, kind, alpha) in [
        ("preview=webp;90", "image/webp", true),
        ("preview=webp", "image/webp", true),
        ("preview=jpeg;50", "image/jpeg", false),
        ("preview=jpeg;50&channel=rgb", "image/jpeg", false),
        ("preview=jpeg;50&channel=rgba", "image/webp", true),
        ("preview=odd;x", "image/webp", true),
        ("preview=webp;90&channel=rgb", "image/webp", false),
        ("channel=rgb", "image/png", false),
        ("channel=a", "image/png", true),
    ] {
        let got = get(query).await;
        assert_eq!(got.header("content-type"), Some(kind), "{query}");
        assert_eq!(
            got.header("content-disposition"),
            Some("filename=\"p.png\""),
            "{query}"
        );
        let decoded = decode(&got.body, &Limits::default()).unwrap();
        assert_eq!(
            (decoded.first().width, decoded.first().height),
            (2, 2),
            "{query}"
        );
        assert_eq!(decoded.first().has_alpha(), alpha, "{query}");
    }
    let alpha = decode(&get("channel=a").await.body, &Limits::default()).unwrap();
    assert_eq!(alpha.first().rgba8(), [0, 0, 0, 100].repeat(4));
    assert_eq!(get("channel=rgba").await.body, png(100, &[]));
    std::fs::write(rig.dirs.output.join("bad.png"), "no picture").unwrap();
    rig.get("/view?filename=bad.png&preview=webp")
        .await
        .expect(500);
    let small = rig_with(|c, _| c.limits.pixels = 3);
    std::fs::write(small.dirs.output.join("p.png"), png(100, &[])).unwrap();
    let got = small
        .get("/view?filename=p.png&preview=webp")
        .await
        .expect(413);
    assert!(got.text().contains("too_many_pixels"));
}

/// A deleted picture's name is given to the next one.
#[tokio::test]
async fn another_picture_under_the_same_name_is_seen() {
    let rig = rig();
    std::fs::create_dir_all(&rig.dirs.output).unwrap();
    let path = rig.dirs.output.join("p.png");
    std::fs::write(&path, png(255, &[])).unwrap();
    let mut tags = Vec::new();
    let forms = [
        "",
        "&channel=rgb",
        "&channel=a",
        "&preview=webp;80",
        "&preview=webp;90",
        "&preview=webp;90&channel=rgb",
        "&preview=jpeg;90",
    ];
    for form in forms {
        let address = format!("/view?filename=p.png{form}");
        let got = rig.get(&address).await.expect(200);
        assert_eq!(got.header("cache-control"), Some("no-cache"), "{form}");
        let tag = got.header("etag").expect("there is a tag").to_owned();
        let known = rig
            .ask("GET", &address, &[("if-none-match", &tag)], "")
            .await
            .expect(304);
        assert_eq!(known.header("etag"), Some(tag.as_str()), "{form}");
        assert!(known.text().is_empty());
        tags.push(tag);
    }
    let mut different = tags.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), tags.len());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, png(7, &[("k".to_owned(), "v".to_owned())])).unwrap();
    for (form, tag) in forms.iter().zip(&tags) {
        let address = format!("/view?filename=p.png{form}");
        rig.ask("GET", &address, &[("if-none-match", tag)], "")
            .await
            .expect(200);
    }
}

#[tokio::test]
async fn ranges_and_validators() {
    let rig = rig();
    let content: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
    std::fs::write(rig.dirs.output.join("v.mp4"), &content).unwrap();
    let path = "/view?filename=v.mp4";
    let whole = rig.get(path).await.expect(200);
    assert_eq!(whole.body, content);
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let etag = whole.header("etag").unwrap().to_owned();
    let date = whole.header("last-modified").unwrap().to_owned();
    assert!(etag.ends_with("-f4240\""), "{etag}");
    let ask = async |headers: &[(&str, &str)]| rig.ask("GET", path, headers, "").await;
    let part = ask(&[("range", "bytes=10-19")]).await.expect(206);
    assert_eq!(part.body, content[10..20]);
    assert_eq!(part.header("content-range"), Some("bytes 10-19/1000000"));
    assert_eq!(part.header("content-length"), Some("10"));
    assert_eq!(
        ask(&[("range", "bytes=300000-")]).await.expect(206).body,
        content[300_000..]
    );
    assert_eq!(
        ask(&[("range", "bytes=-5")]).await.expect(206).body,
        content[999_995..]
    );
    let outside = ask(&[("range", "bytes=1000000-")]).await.expect(416);
    assert_eq!(outside.header("content-range"), Some("bytes */1000000"));
    assert!(
        ask(&[("if-none-match", &etag)])
            .await
            .expect(304)
            .body
            .is_empty()
    );
    ask(&[("if-none-match", "\"other\"")]).await.expect(200);
    ask(&[("if-modified-since", &date)]).await.expect(304);
    ask(&[("if-modified-since", "Thu, 01 Jan 1970 00:00:00 GMT")])
        .await
        .expect(200);
    ask(&[("if-none-match", "\"other\""), ("if-modified-since", &date)])
        .await
        .expect(200);
    ask(&[("range", "bytes=0-1"), ("if-range", &etag)])
        .await
        .expect(206);
    ask(&[("range", "bytes=0-1"), ("if-range", "\"old\"")])
        .await
        .expect(200);
    let head = rig.ask("HEAD", path, &[], "").await.expect(200);
    assert_eq!(head.header("content-length"), Some("1000000"));
}
