//! What packs bring for the front-end, and `/internal`.

use crate::harness::{Rig, rig, rig_with};

fn put(rig: &Rig, path: &str, content: &str) {
    let path = rig.base.join("custom_nodes").join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

#[tokio::test]
async fn example_workflows() {
    let rig = rig_with(|c, _| c.loaded_packs = vec!["a".into()]);
    assert_eq!(
        rig.get("/workflow_templates").await.expect(200).text(),
        "{}"
    );
    put(&rig, "a/example_workflows/one.json", "{\"w\":1}");
    put(&rig, "a/examples/two.json", "{}");
    put(&rig, "a/examples/two.jpg", "jpg");
    put(&rig, "a/examples/deep/no.json", "{}");
    put(&rig, "b/other/x.json", "{}");
    put(&rig, "c/workflows/x.json", "{}");
    let got = rig.get("/api/workflow_templates").await.expect(200);
    assert_eq!(got.text(), r#"{"a":["one","two"],"c":["x"]}"#);
    assert_eq!(
        rig.get("/api/workflow_templates/a/one.json")
            .await
            .expect(200)
            .text(),
        "{\"w\":1}"
    );
    rig.get("/api/workflow_templates/a/two.jpg")
        .await
        .expect(200);
    rig.get("/api/workflow_templates/a/none.json")
        .await
        .expect(404);
    rig.get("/api/workflow_templates/a/..%2F..%2Fb%2Fother%2Fx.json")
        .await
        .expect(404);
    rig.get("/api/workflow_templates/c/x.json")
        .await
        .expect(404);
    rig.get("/workflow_templates/a/one.json").await.expect(404);
}

#[tokio::test]
async fn translations() {
    let rig = rig();
    put(&rig, "a/locales/en/main.json", r#"{"x":{"a":1},"l":[1]}"#);
    put(
        &rig,
        "a/locales/en/nodeDefs.json",
        r#"{"N":{"display_name":"n"}}"#,
    );
    put(&rig, "a/locales/en/commands.json", "{}");
    put(&rig, "b/locales/en/main.json", r#"{"x":{"b":2},"l":[2]}"#);
    put(&rig, "b/locales/fr/main.json", "not json");
    let want =
        r#"{"en":{"x":{"a":1,"b":2},"l":[1,2],"nodeDefs":{"N":{"display_name":"n"}}},"fr":{}}"#;
    let got = rig.get("/i18n").await.expect(200).json();
    assert_eq!(got, fresco_graph::json::parse(want).unwrap());
    put(&rig, "b/locales/de/main.json", "{\"y\":1}");
    assert_eq!(rig.get("/api/i18n").await.json(), got, "computed once");
}

#[tokio::test]
async fn subgraphs() {
    let rig = rig();
    put(&rig, "a/subgraphs/s.json", "{\"nodes\":[]}");
    let all = rig.get("/global_subgraphs").await.expect(200).json();
    let (id, entry) = all.as_map().unwrap().first().unwrap();
    assert_eq!(id.len(), 64);
    assert_eq!(
        format!("{entry:?}"),
        r#"{"source":"custom_node","name":"s","info":{"node_pack":"custom_nodes.a"}}"#
    );
    let one = rig
        .get(&format!("/global_subgraphs/{id}"))
        .await
        .expect(200)
        .json();
    assert_eq!(one.get("data").unwrap().as_str(), Some("{\"nodes\":[]}"));
    assert_eq!(
        rig.get("/global_subgraphs/nothing")
            .await
            .expect(200)
            .text(),
        "null"
    );
}

#[tokio::test]
async fn logs_and_files() {
    let rig = rig();
    rig.app.logs.push("hello\n");
    let text = rig.get("/internal/logs").await.expect(200).json();
    assert!(text.as_str().unwrap().ends_with(" - hello\n"));
    let raw = rig.get("/internal/logs/raw").await.expect(200).json();
    let entry = &raw.get("entries").unwrap().as_list().unwrap()[0];
    assert_eq!(entry.get("m").unwrap().as_str(), Some("hello\n"));
    assert_eq!(
        entry.get("t").unwrap().as_str().unwrap().as_bytes()[10],
        b'T'
    );
    assert_eq!(
        raw.get("size").unwrap().get("cols").unwrap().as_int(),
        Some(80)
    );
    let subscribe = async |body: &str| {
        rig.ask("PATCH", "/internal/logs/subscribe", &[], body.to_owned())
            .await
            .status
    };
    assert_eq!(subscribe(r#"{"clientId":"x","enabled":true}"#).await, 200);
    assert_eq!(subscribe("{}").await, 500);

    let old = rig.dirs.input.join("old.png");
    std::fs::write(&old, "1").unwrap();
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(1000);
    std::fs::File::options()
        .write(true)
        .open(&old)
        .unwrap()
        .set_modified(past)
        .unwrap();
    std::fs::write(rig.dirs.input.join("new.png"), "2").unwrap();
    std::fs::write(rig.dirs.input.join(".hidden"), "3").unwrap();
    std::fs::create_dir(rig.dirs.input.join("folder")).unwrap();
    assert_eq!(
        rig.get("/internal/files/input").await.expect(200).text(),
        r#"["new.png","old.png"]"#
    );
    let got = rig.get("/internal/files/models").await.expect(400);
    assert_eq!(got.text(), r#"{"error":"Invalid directory type"}"#);
}
