//! Users, settings, user data.

use axum::body::Body;
use fresco_graph::Value;

use crate::harness::{rig, rig_with};

#[tokio::test]
async fn one_user_by_default() {
    let rig = rig();
    assert_eq!(
        rig.get("/users").await.expect(200).text(),
        r#"{"storage":"server","migrated":false}"#
    );
    rig.post("/settings/a", "1").await.expect(200);
    assert_eq!(
        rig.get("/api/users").await.text(),
        r#"{"storage":"server","migrated":true}"#
    );
    // The header means nothing here, and system users are out of reach.
    let headers = [("comfy-user", "__system")];
    rig.ask("POST", "/userdata/x.txt", &headers, "x")
        .await
        .expect(200);
    assert!(rig.base.join("user/default/x.txt").exists());
    assert!(!rig.base.join("user/__system").exists());
}

#[tokio::test]
async fn many_users_on_request() {
    let rig = rig_with(|c, _| c.multi_user = true);
    assert_eq!(
        rig.get("/users").await.text(),
        r#"{"storage":"server","users":{}}"#
    );
    rig.get("/settings").await.expect(401);
    let id = rig
        .post("/users", r#"{"username":" Ann Lee! "}"#)
        .await
        .expect(200)
        .json();
    let id = id.as_str().unwrap().to_owned();
    assert!(id.starts_with("Ann-Lee-_"), "{id}");
    for (body, text) in [
        (r#"{"username":"Ann Lee!"}"#, "Duplicate username."),
        (r#"{"username":"  "}"#, "username not provided"),
        (r#"{"username":"__x"}"#, "System User prefix not allowed"),
    ] {
        let got = rig.post("/users", body).await.expect(400).json();
        assert_eq!(got.get("error").unwrap().as_str(), Some(text));
    }
    rig.post("/users", "{}").await.expect(500);
    let me = [("comfy-user", id.as_str())];
    rig.ask("POST", "/userdata/a.txt", &me, "mine")
        .await
        .expect(200);
    rig.ask("GET", "/userdata/a.txt", &me, Body::empty())
        .await
        .expect(200);
    for stranger in ["__system", "nobody", "", "../x"] {
        let headers = [("comfy-user", stranger)];
        rig.ask("GET", "/userdata/a.txt", &headers, Body::empty())
            .await
            .expect(401);
        rig.ask("POST", "/userdata/a.txt", &headers, "x")
            .await
            .expect(401);
        rig.ask("GET", "/settings", &headers, Body::empty())
            .await
            .expect(401);
        rig.ask("POST", "/settings", &headers, "{}")
            .await
            .expect(401);
        let got = rig
            .ask("GET", "/v2/userdata", &headers, Body::empty())
            .await
            .expect(403);
        assert_eq!(got.text(), "Invalid user specified in request");
    }
    let users = std::fs::read_to_string(rig.base.join("user/users.json")).unwrap();
    assert!(users.contains("Ann Lee!"));
}

#[tokio::test]
async fn settings_are_merged_and_kept() {
    let rig = rig();
    assert_eq!(rig.get("/settings").await.expect(200).text(), "{}");
    assert_eq!(rig.get("/settings/a").await.expect(200).text(), "null");
    rig.post("/settings", r#"{"a":1,"b":{"c":[true]}}"#)
        .await
        .expect(200);
    rig.post("/settings/a", "\"x\"").await.expect(200);
    rig.post("/settings", r#"{"b":2.5}"#).await.expect(200);
    assert_eq!(rig.get("/settings").await.text(), r#"{"a":"x","b":2.5}"#);
    assert_eq!(rig.get("/api/settings/b").await.text(), "2.5");
    let file = rig.base.join("user/default/comfy.settings.json");
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        "{\n    \"a\": \"x\",\n    \"b\": 2.5\n}"
    );
    std::fs::write(&file, "not json").unwrap();
    assert_eq!(rig.get("/settings").await.expect(200).text(), "{}");
    rig.post("/settings", "[]").await.expect(500);
    rig.post("/settings/x", "{").await.expect(500);
}

#[tokio::test]
async fn files_are_stored_listed_moved_and_deleted() {
    let rig = rig();
    assert_eq!(
        rig.post("/userdata/test.txt", "one")
            .await
            .expect(200)
            .text(),
        "\"test.txt\""
    );
    rig.post("/userdata/test.txt", "two").await.expect(200);
    let got = rig
        .post("/userdata/test.txt?overwrite=false", "three")
        .await
        .expect(409);
    assert_eq!(got.text(), "File already exists");
    let got = rig.get("/userdata/test.txt").await.expect(200);
    assert_eq!(got.text(), "two");
    assert_eq!(got.header("content-security-policy"), Some("sandbox"));

    let info = rig
        .post(
            "/userdata/test_dir%2Fsubdir%2Ffile1.txt?full_info=true",
            "abc",
        )
        .await
        .expect(200)
        .json();
    assert_eq!(
        info.get("path").unwrap().as_str(),
        Some("test_dir/subdir/file1.txt")
    );
    assert_eq!(info.get("size").unwrap().as_int(), Some(3));
    assert!(info.get("modified").unwrap().as_f64().unwrap() > 1e9);
    rig.post("/userdata/test_dir%2F.hidden", "x")
        .await
        .expect(200);
    let list = async |query: &str| rig.get(&format!("/userdata?{query}")).await;
    assert_eq!(
        list("dir=test_dir&recurse=true&split=true")
            .await
            .expect(200)
            .text(),
        r#"[["subdir/file1.txt","subdir","file1.txt"]]"#
    );
    assert_eq!(
        list("dir=test_dir&recurse=True").await.text(),
        r#"["subdir/file1.txt"]"#
    );
    assert_eq!(list("dir=test_dir").await.text(), "[]");
    let full = list("dir=test_dir&recurse=true&full_info=true")
        .await
        .json();
    assert_eq!(
        full.as_list().unwrap()[0].get("path").unwrap().as_str(),
        Some("subdir/file1.txt")
    );
    assert_eq!(list("").await.expect(400).text(), "Directory not provided");
    assert_eq!(list("dir=..").await.expect(403).text(), "Invalid directory");
    assert_eq!(
        list("dir=nothing").await.expect(404).text(),
        "Directory not found"
    );

    let moved = rig
        .post("/userdata/test.txt/move/b%2Fc.txt", "")
        .await
        .expect(200);
    assert_eq!(moved.text(), "\"b/c.txt\"");
    rig.get("/userdata/test.txt").await.expect(404);
    rig.post("/userdata/test.txt/move/d.txt", "")
        .await
        .expect(404);
    rig.post("/userdata/d.txt", "d").await.expect(200);
    rig.post("/userdata/d.txt/move/b%2Fc.txt?overwrite=false", "")
        .await
        .expect(409);
    rig.post("/userdata/d.txt/move/..%2F..%2Fc.txt", "")
        .await
        .expect(403);
    rig.ask("DELETE", "/userdata/b%2Fc.txt", &[], Body::empty())
        .await
        .expect(204);
    rig.ask("DELETE", "/userdata/b%2Fc.txt", &[], Body::empty())
        .await
        .expect(404);
}

#[tokio::test]
async fn names_cannot_leave_the_users_folder() {
    let rig = rig();
    std::fs::create_dir_all(rig.base.join("user/other")).unwrap();
    std::fs::write(rig.base.join("user/other/secret.txt"), "secret").unwrap();
    for name in [
        "..%2Fother%2Fsecret.txt",
        "..%252Fother%252Fsecret.txt",
        "%2Fetc%2Fpasswd",
        "a%00b",
        "nul.txt",
    ] {
        let path = format!("/userdata/{name}");
        rig.get(&path).await.expect(403);
        rig.post(&path, "x").await.expect(403);
        rig.ask("DELETE", &path, &[], Body::empty())
            .await
            .expect(403);
    }
    let long = format!("/userdata/{}", "x".repeat(4096));
    rig.post(&long, "x").await.expect(403);
    assert_eq!(
        std::fs::read_to_string(rig.base.join("user/other/secret.txt")).unwrap(),
        "secret"
    );
}

#[tokio::test]
async fn the_second_listing_shows_folders_too() {
    let rig = rig();
    assert_eq!(rig.get("/v2/userdata").await.expect(200).text(), "[]");
    rig.post("/userdata/my%20dir%2Ffile.txt", "abc")
        .await
        .expect(200);
    rig.post("/userdata/A.txt", "a").await.expect(200);
    let names = |list: &Value| -> Vec<String> {
        let list = list.as_list().unwrap();
        list.iter()
            .map(|e| e.get("path").unwrap().as_str().unwrap().to_owned())
            .collect()
    };
    let all = rig.get("/v2/userdata").await.expect(200).json();
    assert_eq!(names(&all), ["my dir", "A.txt", "my dir/file.txt"]);
    let first = &all.as_list().unwrap()[0];
    assert_eq!(first.get("type").unwrap().as_str(), Some("directory"));
    assert_eq!(first.as_map().unwrap().len(), 3);
    let sub = rig
        .get("/v2/userdata?path=my%20dir")
        .await
        .expect(200)
        .json();
    assert_eq!(names(&sub), ["my dir/file.txt"]);
    assert_eq!(
        sub.as_list().unwrap()[0].get("size").unwrap().as_int(),
        Some(3)
    );
    assert_eq!(
        names(&rig.get("/v2/userdata?path=my%2520dir").await.json()),
        ["my dir/file.txt"]
    );
    assert_eq!(
        rig.get("/v2/userdata?path=..").await.expect(400).text(),
        "Invalid path requested"
    );
    assert_eq!(
        rig.get("/v2/userdata?path=none").await.expect(404).text(),
        "Requested path not found"
    );
    let got = rig.get("/v2/userdata?path=A.txt").await.expect(400);
    assert_eq!(got.text(), "Requested path is not a directory");
}
