//! The durable store through its public API: order, limits, paging, job lists, flags.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

mod store_support;

use std::sync::Arc;
use std::time::Duration;

use fresco_engine::store::*;
use fresco_engine::{JobEnd, JobOutcome};
use fresco_graph::{Map, Value, json, map};
use store_support::*;

#[test]
fn runs_lower_numbers_first_then_ids_then_age() {
    let store = memory();
    for (id, priority) in [
        ("b", Priority::Auto),      // 0
        ("a", Priority::Auto),      // 1
        ("front", Priority::Front), // -2
        ("later", Priority::Front), // -3
        ("z", Priority::Explicit(1.0)),
        ("half", Priority::Explicit(0.5)),
        ("last", Priority::Explicit(f64::NAN)),
        ("minus", Priority::Explicit(-0.0)),
    ] {
        put(&store, id, priority);
    }
    // The same number and id: first come, first served.
    enqueue(
        &store,
        NewJob {
            prompt: Arc::new(map! { "twin" => 1 }),
            ..job("z", Priority::Explicit(1.0))
        },
    );
    let queue = store.queue().wait().unwrap().unwrap();
    assert_eq!(
        ids(&queue.pending),
        [
            "later", "front", "b", "minus", "half", "a", "z", "z", "last"
        ]
    );
    let mut taken = Vec::new();
    let mut twin = Vec::new();
    for _ in 0..9 {
        let job = take(&store);
        twin.push(job.prompt.contains_key("twin"));
        taken.push(job.prompt_id.to_string());
        end(&store, job.task);
    }
    assert_eq!(
        taken,
        [
            "later", "front", "b", "minus", "half", "a", "z", "z", "last"
        ]
    );
    assert_eq!(twin.iter().position(|t| *t), Some(7));
}

#[test]
fn numbers_keep_their_kind_and_refused_requests_count() {
    let store = memory();
    assert_eq!(put(&store, "a", Priority::Auto).number, Value::Int(0));
    assert_eq!(store.next_number(false), 1);
    assert_eq!(put(&store, "b", Priority::Front).number, Value::Int(-2));
    let drawn = store.next_number(true);
    assert_eq!(
        put(&store, "c", Priority::Drawn(drawn)).number,
        Value::Int(-3)
    );
    let explicit = put(&store, "d", Priority::Explicit(5.0));
    assert!(matches!(explicit.number, Value::Float(5.0)));
    assert_eq!(explicit.remaining, 4);
    assert!(matches!(
        put(&store, "e", Priority::Auto).number,
        Value::Int(4)
    ));
    let queue = store.queue().wait().unwrap().unwrap();
    let numbers: Vec<_> = queue
        .pending
        .iter()
        .map(|r| json::to_string(&r.number))
        .collect();
    assert_eq!(numbers, ["-3", "-2", "0", "4", "5.0"]);
}

#[test]
fn a_full_queue_refuses_and_says_so() {
    let store = JobStore::open(
        &StorePath::Memory,
        Limits {
            max_pending: 2,
            history: 10,
            ..Limits::default()
        },
    )
    .unwrap();
    put(&store, "a", Priority::Auto);
    put(&store, "b", Priority::Auto);
    let refused = store
        .enqueue(job("c", Priority::Auto))
        .wait()
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(refused, StoreError::QueueFull { limit: 2 }),
        "{refused}"
    );
    let running = take(&store);
    put(&store, "d", Priority::Auto);
    assert_eq!(store.remaining(), 3);
    assert_eq!(end(&store, running.task), 2);
}

#[test]
fn a_taken_job_is_whole_and_secrets_stay_out_of_records() {
    let store = memory();
    let prompt =
        json::parse(r#"{"1":{"class_type":"A","inputs":{"x":NaN,"y":5,"z":5.0,"s":"NaN é"}}}"#)
            .unwrap();
    let mut new = job("p", Priority::Auto);
    new.prompt = Arc::new(prompt.as_map().unwrap().clone());
    new.outputs = vec!["1".into(), "2".into()];
    new.extra_data = map! {
        "client_id" => "me", "create_time" => 7, "auth_token_comfy_org" => "hidden-1", "n" => f64::INFINITY,
    };
    new.sensitive = map! { "api_key_comfy_org" => "hidden-2" };
    enqueue(&store, new);
    let text = format!("{:?}", store.queue().wait());
    assert!(!text.contains("hidden"), "{text}");
    assert!(text.contains(r#"\"x\":null,\"y\":5,\"z\":5.0"#), "{text}");
    let taken = take(&store);
    assert_eq!((taken.task, taken.attempt, taken.remaining), (0, 1, 1));
    assert_eq!(taken.client_id.as_deref(), Some("me"));
    assert_eq!(taken.sensitive.len(), 2);
    assert_eq!(taken.extra_data["n"].as_f64(), Some(f64::INFINITY));
    assert_eq!(taken.outputs, ["1".into(), "2".into()]);
    let node = taken.prompt["1"].get("inputs").unwrap();
    assert!(node.get("x").unwrap().as_f64().unwrap().is_nan());
    end(&store, taken.task);
    let text = format!("{:?}", store.history(None, -1).wait());
    assert!(
        !text.contains("hidden") && text.contains("create_time"),
        "{text}"
    );
}

#[test]
fn long_queues_come_back_from_the_database_unchanged() {
    let store = memory();
    let special =
        "{\"1\":{\"inputs\":{\"nan\":NaN,\"inf\":-Infinity,\"big\":18446744073709551615}}}";
    let prompt = Arc::new(json::parse(special).unwrap().as_map().unwrap().clone());
    for i in 0..200 {
        enqueue(
            &store,
            NewJob {
                prompt: prompt.clone(),
                ..job(&format!("{i:03}"), Priority::Auto)
            },
        );
    }
    for i in 0..200 {
        let taken = take(&store);
        assert_eq!(&*taken.prompt_id, format!("{i:03}"));
        assert_eq!(
            json::to_python(&Value::Map(taken.prompt)),
            json::to_python(&Value::Map(prompt.clone()))
        );
        end(&store, taken.task);
    }
}

#[test]
fn finishing_twice_counts_once_and_an_id_keeps_its_place() {
    let store = memory();
    for id in ["a", "b", "a"] {
        put(&store, id, Priority::Auto);
    }
    let first = take(&store);
    assert_eq!(end(&store, first.task), 2);
    assert_eq!(end(&store, first.task), 2);
    let second = take(&store);
    end(&store, second.task);
    let again = take(&store);
    let outcome = JobOutcome {
        outputs: map! { "9" => Map::new() },
        ..success()
    };
    store.finish(again.task, outcome).wait().unwrap().unwrap();
    let history = store.history(None, -1).wait().unwrap().unwrap();
    assert_eq!(
        history.iter().map(|h| &*h.prompt_id).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(&*history[0].outputs, r#"{"9":{}}"#);
    assert_eq!(history[0].number, Value::Int(2));
    assert_eq!(store.finish(99, success()).wait().unwrap().unwrap(), 0);
}

#[test]
fn history_pages_as_the_reference_does() {
    let store = memory();
    for i in 0..5 {
        put(&store, &i.to_string(), Priority::Auto);
        let job = take(&store);
        end(&store, job.task);
    }
    for (max, offset, expected) in [
        (None, -1, "01234"),
        (None, 0, "01234"),
        (None, 2, "234"),
        (None, 5, ""),
        (Some(2), -1, "34"),
        (Some(2), 1, "12"),
        (Some(3), 4, "4"),
        (Some(3), 3, "34"),
        (Some(0), -1, ""),
        (Some(0), 3, "3"),
        (Some(99), -1, "01234"),
    ] {
        let page = store.history(max, offset).wait().unwrap().unwrap();
        let got: String = page.iter().map(|h| &*h.prompt_id).collect();
        assert_eq!(got, expected, "{max:?} {offset}");
    }
    let one = store.history_get("3").wait().unwrap().unwrap().unwrap();
    assert_eq!(
        (&one.end, &*one.outputs_to_execute),
        (&JobEnd::Finished, r#"["1"]"#)
    );
    assert_eq!(store.history_get("x").wait().unwrap().unwrap(), None);
    let deleted = store
        .history_delete(vec!["1".into(), "x".into(), "4".into()])
        .wait();
    assert_eq!(deleted.unwrap().unwrap(), 2);
    assert_eq!(store.history(None, 0).wait().unwrap().unwrap().len(), 3);
    store.history_clear().wait().unwrap().unwrap();
    assert_eq!(store.history(None, 0).wait().unwrap().unwrap().len(), 0);
}

#[test]
fn a_full_history_drops_its_oldest_before_it_grows() {
    let store = JobStore::open(
        &StorePath::Memory,
        Limits {
            max_pending: 100,
            history: 3,
            ..Limits::default()
        },
    )
    .unwrap();
    for i in 0..6 {
        put(&store, &i.to_string(), Priority::Auto);
        let job = take(&store);
        end(&store, job.task);
    }
    // One more than the limit, as in the reference: it looks before it inserts.
    assert_eq!(history_ids(&store), ["2", "3", "4", "5"]);
    // Re-use of the id that is dropped first: it loses its place.
    put(&store, "2", Priority::Auto);
    let job = take(&store);
    end(&store, job.task);
    assert_eq!(history_ids(&store), ["3", "4", "5", "2"]);
}

#[test]
fn waiting_jobs_can_be_deleted_cleared_and_cancelled() {
    let store = memory();
    put(&store, "run", Priority::Auto);
    let running = take(&store);
    for (id, number) in [("x", 5.0), ("y", 3.0), ("x", 4.0), ("w", 9.0), ("x", 8.0)] {
        put(&store, id, Priority::Explicit(number));
    }
    let delete = |id| store.delete_pending(id).wait().unwrap().unwrap();
    assert!(delete("x"));
    assert!(!delete("run"));
    assert!(!delete("nobody"));
    let queue = store.queue().wait().unwrap().unwrap();
    assert_eq!(ids(&queue.pending), ["y", "x", "x", "w"]);
    assert_eq!(ids(&queue.running), ["run"]);
    let cancelled = JobOutcome::interrupted("y");
    assert!(
        store
            .cancel_pending("y", cancelled.clone())
            .wait()
            .unwrap()
            .unwrap()
    );
    assert!(
        !store
            .cancel_pending("y", cancelled)
            .wait()
            .unwrap()
            .unwrap()
    );
    assert_eq!(history_ids(&store), ["y"]);
    let job = store.job("y").wait().unwrap().unwrap().unwrap().job;
    assert_eq!(job.status, JobStatus::Cancelled);
    assert_eq!(store.clear_pending().wait().unwrap().unwrap(), 3);
    assert_eq!(store.remaining(), 1);
    assert_eq!(end(&store, running.task), 0);
}

#[test]
fn the_worker_wakes_for_jobs_calls_and_the_end() {
    let store = memory();
    assert!(matches!(store.next(&here(), Duration::ZERO), Next::Timeout));
    store.wake();
    assert!(matches!(
        store.next(&here(), Duration::from_mins(1)),
        Next::Woken | Next::Timeout
    ));
    let waiting = std::thread::spawn({
        let store = store.clone();
        move || {
            loop {
                // A wake-up left from above may come first.
                match store.next(&here(), Duration::from_mins(1)) {
                    Next::Woken => {}
                    other => return other,
                }
            }
        }
    });
    put(&store, "job", Priority::Auto);
    assert!(matches!(waiting.join().unwrap(), Next::Job(_)));
    let waiting = std::thread::spawn({
        let store = store.clone();
        move || store.next(&here(), Duration::from_mins(1))
    });
    store.close().wait().unwrap();
    assert!(matches!(waiting.join().unwrap(), Next::Closed));
    assert!(matches!(
        store.next(&here(), Duration::from_mins(1)),
        Next::Closed
    ));
    assert!(store.enqueue(job("late", Priority::Auto)).wait().is_none());
}

#[test]
fn settings_of_ours_are_kept() {
    let store = memory();
    assert_eq!(store.get("a").wait().unwrap().unwrap(), None);
    store.set("a", Some("1")).wait().unwrap().unwrap();
    store.set("a", Some("2")).wait().unwrap().unwrap();
    assert_eq!(
        store.get("a").wait().unwrap().unwrap().as_deref(),
        Some("2")
    );
    store.set("a", None).wait().unwrap().unwrap();
    assert_eq!(store.get("a").wait().unwrap().unwrap(), None);
}

/// One of each: running, two pending, and finished ones with times and workflows.
fn jobs_of_all_kinds() -> JobStore {
    let store = memory();
    let put = |id: &str, created: i64, workflow: &str| {
        let mut new = job(id, Priority::Auto);
        new.extra_data = map! {
            "create_time" => created,
            "extra_pnginfo" => map! { "workflow" => map! { "id" => workflow } },
        };
        enqueue(&store, new);
    };
    for (id, created, workflow, start, end, kind) in [
        ("done", 10, "w1", 100, 150, "success"),
        ("failed", 30, "w2", 200, 210, "error"),
        ("stopped", 20, "w1", 300, 400, "interrupted"),
    ] {
        put(id, created, workflow);
        let job = take(&store);
        let message = |event: &str, time: i64| {
            Value::from([
                Value::from(event),
                map! { "timestamp" => time, "node_id" => "3" }.into(),
            ])
        };
        let outcome = JobOutcome {
            outputs: map! { "9" => map! { "images" => vec![Value::from(map! { "filename" => "a.png", "type" => "output" })] } },
            messages: vec![
                message("execution_start", start),
                message(&format!("execution_{kind}"), end),
            ],
            end: match kind {
                "success" => JobEnd::Finished,
                "interrupted" => JobEnd::Interrupted,
                _ => JobEnd::Failed,
            },
            ..success()
        };
        store.finish(job.task, outcome).wait().unwrap().unwrap();
    }
    put("running", 40, "w2");
    take(&store);
    put("wait1", 50, "w1");
    put("wait2", 50, "w3");
    store
}

#[test]
fn job_lists_filter_sort_and_page() {
    use JobStatus::*;
    let store = jobs_of_all_kinds();
    let list = |query: JobQuery| {
        let page = store.jobs(query).wait().unwrap().unwrap();
        let ids: Vec<_> = page.jobs.iter().map(|j| j.id.to_string()).collect();
        format!("{} of {}", ids.join(" "), page.total)
    };
    let all = JobQuery {
        descending: true,
        ..JobQuery::default()
    };
    assert_eq!(
        list(all.clone()),
        "wait1 wait2 running failed stopped done of 6"
    );
    assert_eq!(
        list(JobQuery::default()),
        "done stopped failed running wait1 wait2 of 6"
    );
    let statuses = |statuses: &[JobStatus]| JobQuery {
        statuses: statuses.into(),
        ..all.clone()
    };
    assert_eq!(
        list(statuses(&[Pending, InProgress])),
        "wait1 wait2 running of 3"
    );
    assert_eq!(
        list(statuses(&[Completed, Failed, Cancelled])),
        "failed stopped done of 3"
    );
    assert_eq!(list(statuses(&[Cancelled])), "stopped of 1");
    let workflow = JobQuery {
        workflow_id: Some("w1".into()),
        ..all.clone()
    };
    assert_eq!(list(workflow), "wait1 stopped done of 3");
    assert_eq!(
        list(JobQuery {
            workflow_id: Some("'; --".into()),
            ..all.clone()
        }),
        " of 0"
    );
    let begins = |prefix: &str| JobQuery {
        workflow_prefix: Some(prefix.into()),
        ..all.clone()
    };
    assert_eq!(list(begins("w1")), "wait1 stopped done of 3");
    assert_eq!(list(begins("w")), list(all.clone()));
    assert_eq!(list(begins("1")), " of 0");
    assert_eq!(list(begins("%")), " of 0");
    assert_eq!(
        list(JobQuery {
            workflow_id: Some("w1".into()),
            ..begins("w2")
        }),
        " of 0"
    );
    let duration = JobQuery {
        sort_by: JobSort::Duration,
        ..all.clone()
    };
    assert_eq!(
        list(duration.clone()),
        "stopped done failed running wait1 wait2 of 6"
    );
    let ascending = JobQuery {
        descending: false,
        ..duration
    };
    assert_eq!(
        list(ascending),
        "running wait1 wait2 failed done stopped of 6"
    );
    assert_eq!(
        list(JobQuery {
            limit: Some(2),
            offset: 3,
            ..all.clone()
        }),
        "failed stopped of 6"
    );
    assert_eq!(
        list(JobQuery {
            offset: usize::MAX,
            ..all
        }),
        " of 6"
    );
}

#[test]
fn one_job_carries_what_is_known() {
    let store = jobs_of_all_kinds();
    let get = |id: &str| store.job(id).wait().unwrap().unwrap();
    let failed = get("failed").unwrap();
    assert_eq!(failed.job.status, JobStatus::Failed);
    assert_eq!(
        (
            failed.job.create_time,
            failed.job.start_time,
            failed.job.end_time
        ),
        (Some(30), Some(200), Some(210))
    );
    assert_eq!(
        failed.job.error.as_deref(),
        Some(r#"{"timestamp":210,"node_id":"3"}"#)
    );
    assert_eq!(
        (failed.job.outputs_count, failed.job.previewable_count),
        (1, 1)
    );
    let preview = r#"{"filename":"a.png","type":"output","nodeId":"9","mediaType":"images"}"#;
    assert_eq!(failed.job.preview_output.as_deref(), Some(preview));
    assert_eq!(failed.job.workflow_id.as_deref(), Some("\"w2\""));
    assert!(matches!(failed.body, JobBody::Finished(_)));
    let running = get("running").unwrap();
    assert_eq!(
        (running.job.status, running.job.outputs_count),
        (JobStatus::InProgress, 0)
    );
    assert!(matches!(get("wait1").unwrap().body, JobBody::Queued(_)));
    assert_eq!(get("nobody"), None);
}
