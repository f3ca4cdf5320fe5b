//! The front-end and other files sent as they are.

use fresco_server::{FrontEnd, Templates};

use crate::harness::{Rig, rig_with};

fn with_front_end() -> Rig {
    rig_with(|config, base| {
        let root = base.join("web");
        let files = [
            ("index.html", "<h1>front</h1>"),
            ("assets/a.js", "export {}"),
            ("a.css", "b{}"),
            ("scripts/ui.js", "1"),
            ("extensions/core/x.js", "x"),
            ("pic.PNG", "png"),
            ("data.txt", "t"),
        ];
        for (name, content) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        std::fs::write(base.join("outside.txt"), "secret").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(base.join("outside.txt"), root.join("link.txt")).unwrap();
        let pack = base.join("pack web");
        std::fs::create_dir_all(pack.join("sub")).unwrap();
        std::fs::write(pack.join("sub/p.js"), "pack").unwrap();
        let docs = base.join("docs");
        std::fs::create_dir_all(docs.join("Node")).unwrap();
        std::fs::write(docs.join("Node/en.md"), "# doc").unwrap();
        let template = base.join("tpl.json");
        std::fs::write(&template, "{}").unwrap();
        config.front_end = FrontEnd::Folder(root);
        config.extensions = vec![("my pack".into(), pack)];
        config.docs = Some(docs);
        config.templates =
            Templates::Files([("index.json".to_owned(), template)].into_iter().collect());
    })
}

#[tokio::test]
async fn the_front_end_is_served() {
    let rig = with_front_end();
    for path in ["/", "/api/"] {
        let got = rig.get(path).await.expect(200);
        assert_eq!(got.text(), "<h1>front</h1>");
        assert_eq!(got.header("content-type"), Some("text/html"));
        assert_eq!(got.header("cache-control"), Some("no-cache"));
    }
    for (path, kind, cache) in [
        (
            "/assets/a.js",
            "application/javascript; charset=utf-8",
            Some("no-cache"),
        ),
        ("/a.css", "text/css", Some("no-cache")),
        ("/pic.PNG", "image/png", Some("public, max-age=86400")),
        ("/data.txt", "text/plain", None),
        (
            "/templates/index.json",
            "application/json",
            Some("no-cache"),
        ),
        ("/docs/Node/en.md", "text/markdown", None),
        (
            "/extensions/my%20pack/sub/p.js",
            "application/javascript; charset=utf-8",
            Some("no-cache"),
        ),
        (
            "/extensions/core/x.js",
            "application/javascript; charset=utf-8",
            Some("no-cache"),
        ),
    ] {
        let got = rig.get(path).await.expect(200);
        assert_eq!(got.header("content-type"), Some(kind), "{path}");
        assert_eq!(got.header("cache-control"), cache, "{path}");
        assert!(
            got.header("etag").is_some() && got.header("last-modified").is_some(),
            "{path}"
        );
    }
    assert_eq!(
        rig.get("/extensions").await.expect(200).text(),
        r#"["/extensions/core/x.js","/extensions/my%20pack/sub/p.js"]"#
    );
}

#[tokio::test]
async fn only_files_inside_are_served() {
    let rig = with_front_end();
    rig.get("/assets").await.expect(403);
    let missing = rig.get("/missing.jpg").await.expect(404);
    assert_eq!(
        missing.header("cache-control"),
        Some("public, max-age=3600")
    );
    assert!(missing.body.is_empty());
    for path in [
        "/..%2Foutside.txt",
        "/assets/..%2f..%2foutside.txt",
        "/link.txt",
        "/templates/nothing.json",
        "/docs/..%2Foutside.txt",
        "/extensions/my%20pack/..%2F..%2Foutside.txt",
        "/%00",
    ] {
        let got = rig.get(path).await;
        assert!(matches!(got.status, 403 | 404), "{path}: {}", got.status);
        assert!(!got.text().contains("secret"));
    }
    // No page for unknown paths: an editor asks for optional files and takes HTML for content.
    assert!(
        !rig.get("/some/route")
            .await
            .expect(404)
            .text()
            .contains("front")
    );
}
