//! `/api/jobs`, cancelling, event streams.

use fresco_graph::Value;

use crate::harness::{chain, picture, rig};

fn ids(page: &Value) -> Vec<String> {
    let jobs = page.get("jobs").unwrap().as_list().unwrap();
    jobs.iter()
        .map(|j| j.get("id").unwrap().as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn the_list_is_what_the_newest_front_end_accepts() {
    let rig = rig();
    let body = format!(
        "{{\"prompt\":{},\"prompt_id\":\"good\",\"extra_data\":{{\"extra_pnginfo\":{{\"workflow\":{{\"id\":\"w1\"}}}}}}}}",
        picture(1)
    );
    rig.post("/prompt", body).await.expect(200);
    rig.finish("good").await;
    rig.post(
        "/prompt",
        format!("{{\"prompt\":{},\"prompt_id\":\"bad\"}}", chain(2, "Fail")),
    )
    .await
    .expect(200);
    rig.finish("bad").await;

    let page = rig
        .get("/api/jobs?status=completed,failed,cancelled&limit=64&offset=0")
        .await
        .expect(200)
        .json();
    let pagination = page.get("pagination").unwrap();
    assert_eq!(pagination.get("limit").unwrap().as_int(), Some(64));
    assert_eq!(pagination.get("total").unwrap().as_int(), Some(2));
    assert_eq!(pagination.get("has_more").unwrap().as_bool(), Some(false));
    let mut names = ids(&page);
    names.sort();
    assert_eq!(names, ["bad", "good"]);
    for job in page.get("jobs").unwrap().as_list().unwrap() {
        assert!(job.get("create_time").unwrap().as_int().is_some());
        assert!(job.get("execution_start_time").unwrap().as_int().is_some());
        assert!(job.get("execution_end_time").unwrap().as_int().is_some());
        assert!(job.get("priority").unwrap().as_f64().is_some());
        assert!(job.as_map().unwrap().values().all(|v| !v.is_null()));
    }
    let all = rig.get("/api/jobs").await.json();
    assert!(
        all.get("pagination")
            .unwrap()
            .get("limit")
            .unwrap()
            .as_int()
            .is_some(),
        "never null"
    );

    let good = rig.get("/api/jobs/good").await.expect(200).json();
    assert_eq!(good.get("status").unwrap().as_str(), Some("completed"));
    assert_eq!(good.get("workflow_id").unwrap().as_str(), Some("w1"));
    assert_eq!(good.get("outputs_count").unwrap().as_int(), Some(1));
    let preview = good.get("preview_output").unwrap();
    assert_eq!(preview.get("nodeId").unwrap().as_str(), Some("2"));
    assert_eq!(preview.get("mediaType").unwrap().as_str(), Some("images"));
    assert!(good.get("outputs").unwrap().get("2").is_some());
    assert!(
        good.get("execution_status")
            .unwrap()
            .get("messages")
            .is_some()
    );
    assert!(
        good.get("workflow")
            .unwrap()
            .get("prompt")
            .unwrap()
            .get("1")
            .is_some()
    );

    let bad = rig.get("/api/jobs/bad").await.expect(200).json();
    assert_eq!(bad.get("status").unwrap().as_str(), Some("failed"));
    let error = bad.get("execution_error").unwrap();
    for key in [
        "node_id",
        "node_type",
        "exception_message",
        "exception_type",
    ] {
        assert!(error.get(key).unwrap().as_str().is_some(), "{key}");
    }
    assert!(error.get("traceback").unwrap().as_list().is_some());
    assert_eq!(
        ids(&rig.get("/api/jobs?workflow_id=w1").await.json()),
        ["good"]
    );
    assert_eq!(
        ids(&rig.get("/api/jobs?sort_order=asc&limit=1").await.json()),
        ["good"]
    );
    assert_eq!(
        ids(&rig
            .get("/api/jobs?sort_order=asc&limit=1&offset=1")
            .await
            .json()),
        ["bad"]
    );
    let got = rig.get("/api/jobs/nobody").await.expect(404);
    assert_eq!(got.text(), r#"{"error":"Job not found"}"#);
}

#[tokio::test]
async fn bad_queries_are_explained() {
    let rig = rig();
    for (query, text) in [
        (
            "status=pending,odd,Worse",
            "Invalid status value(s): odd, worse. Valid values: pending, in_progress, completed, failed, cancelled",
        ),
        (
            "sort_by=x",
            "sort_by must be 'created_at' or 'execution_duration'",
        ),
        ("sort_order=x", "sort_order must be 'asc' or 'desc'"),
        ("limit=0", "limit must be a positive integer"),
        ("limit=-1", "limit must be a positive integer"),
        ("limit=x", "limit must be an integer"),
        ("offset=x", "offset must be an integer"),
    ] {
        let got = rig
            .get(&format!("/api/jobs?{query}"))
            .await
            .expect(400)
            .json();
        assert_eq!(got.get("error").unwrap().as_str(), Some(text), "{query}");
    }
    rig.get("/api/jobs?status=%20Pending%20,COMPLETED&offset=-3&sort_by=execution_duration")
        .await
        .expect(200);
}

#[tokio::test]
async fn jobs_are_cancelled_by_id_and_in_bulk() {
    let rig = rig();
    let running = rig.queue(&chain(1, "Wait"), None).await;
    rig.until_event(&running, "executing").await;
    let mut waiting = Vec::new();
    for i in 0..3 {
        waiting.push(rig.queue(&picture(i), None).await);
    }
    let page = rig
        .get("/api/jobs?status=in_progress,pending&limit=200&offset=0")
        .await
        .json();
    assert_eq!(
        page.get("pagination")
            .unwrap()
            .get("total")
            .unwrap()
            .as_int(),
        Some(4)
    );
    let got = rig
        .post(&format!("/api/jobs/{}/cancel", waiting[0]), "")
        .await
        .expect(200)
        .json();
    assert_eq!(got.get("cancelled").unwrap().as_bool(), Some(true));
    rig.post("/api/jobs/nobody/cancel", "").await.expect(404);
    rig.post("/api/jobs/cancel", "{\"job_ids\":3}")
        .await
        .expect(400);
    rig.post("/api/jobs/cancel", "{}").await.expect(400);
    let body = format!(
        "{{\"job_ids\":[\"{}\",\"{running}\",\"nobody\"]}}",
        waiting[1]
    );
    let got = rig.post("/api/jobs/cancel", body).await.expect(200).json();
    assert_eq!(got.get("cancelled").unwrap().as_list().unwrap().len(), 2);
    rig.finish(&running).await;
    let entry = rig.finish(&waiting[2]).await;
    assert_eq!(
        entry
            .get("status")
            .unwrap()
            .get("completed")
            .unwrap()
            .as_bool(),
        Some(true)
    );
    let mut cancelled = ids(&rig.get("/api/jobs?status=cancelled").await.json());
    cancelled.sort();
    let mut want = vec![running, waiting[0].clone(), waiting[1].clone()];
    want.sort();
    assert_eq!(cancelled, want);
    // Too late is not an error.
    let got = rig
        .post(&format!("/api/jobs/{}/cancel", waiting[2]), "")
        .await
        .expect(200)
        .json();
    assert_eq!(got.get("cancelled").unwrap().as_bool(), Some(false));
}

fn events(text: &str) -> Vec<(u64, String)> {
    let mut out = Vec::new();
    for block in text.split("\n\n").filter(|b| !b.is_empty()) {
        let field = |key: &str| {
            block
                .lines()
                .find_map(|l| l.strip_prefix(key))
                .map(str::to_owned)
        };
        out.push((
            field("id: ").unwrap().parse().unwrap(),
            field("event: ").unwrap(),
        ));
        let data = fresco_graph::json::parse(&field("data: ").unwrap()).unwrap();
        assert!(data.get("prompt_id").is_some(), "{block}");
    }
    out
}

#[tokio::test]
async fn a_job_is_told_from_the_start_or_from_a_number() {
    let rig = rig();
    let id = rig.queue(&picture(1), None).await;
    let got = rig.get(&format!("/api/jobs/{id}/events")).await.expect(200);
    assert!(
        got.header("content-type")
            .unwrap()
            .starts_with("text/event-stream")
    );
    rig.finish(&id).await;
    let all = events(rig.get(&format!("/api/jobs/{id}/events")).await.text());
    let names: Vec<&str> = all.iter().map(|e| e.1.as_str()).collect();
    assert_eq!(
        names,
        [
            "execution_start",
            "execution_cached",
            "executing",
            "executing",
            "executed",
            "progress_state",
            "execution_success",
            "executing"
        ]
    );
    assert!(all.windows(2).all(|p| p[0].0 < p[1].0));
    let middle = all[3].0.to_string();
    let headers = [("last-event-id", middle.as_str())];
    let rest = rig
        .ask("GET", &format!("/api/jobs/{id}/events"), &headers, "")
        .await
        .expect(200);
    assert_eq!(events(rest.text()), all[4..]);
    rig.get("/api/jobs/nobody/events").await.expect(404);
}

#[tokio::test]
async fn a_cancelled_job_that_never_ran_is_told_from_the_history() {
    let rig = rig();
    let running = rig.queue(&chain(1, "Wait"), None).await;
    rig.until_event(&running, "executing").await;
    let id = rig.queue(&picture(1), None).await;
    rig.post(&format!("/api/jobs/{id}/cancel"), "")
        .await
        .expect(200);
    let told = events(
        rig.get(&format!("/api/jobs/{id}/events"))
            .await
            .expect(200)
            .text(),
    );
    assert_eq!(
        told,
        [
            (1, "execution_interrupted".to_owned()),
            (2, "executing".to_owned())
        ]
    );
    rig.post("/interrupt", "").await.expect(200);
}

#[tokio::test]
async fn followers_of_a_waiting_job_are_let_go_when_it_leaves() {
    let rig = rig();
    let running = rig.queue(&chain(1, "Wait"), None).await;
    rig.until_event(&running, "executing").await;
    let cancelled = rig.queue(&picture(1), None).await;
    let deleted = rig.queue(&picture(2), None).await;
    let cleared = rig.queue(&picture(3), None).await;
    let path = |id: &str| format!("/api/jobs/{id}/events");
    let (first, second, third) = (path(&cancelled), path(&deleted), path(&cleared));
    // Followed before anything leaves: the answers to the requests say so.
    let (first, second, third) = (
        rig.open(&first).await,
        rig.open(&second).await,
        rig.open(&third).await,
    );
    rig.post(&format!("/api/jobs/{cancelled}/cancel"), "")
        .await
        .expect(200);
    rig.post("/queue", format!("{{\"delete\":[\"{deleted}\"]}}"))
        .await
        .expect(200);
    rig.post("/queue", "{\"clear\":true}").await.expect(200);
    let text = async |body| axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let first = text(first).await;
    let told = events(std::str::from_utf8(&first).unwrap());
    assert_eq!(told[0].1, "execution_interrupted");
    assert!(text(second).await.is_empty());
    assert!(text(third).await.is_empty());
    rig.post("/interrupt", "").await.expect(200);
}
