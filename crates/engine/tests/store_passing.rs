//! A store that keeps nothing: jobs go straight to workers, their ends straight back.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

mod store_support;

use std::sync::Arc;
use std::time::Duration;

use fresco_engine::RunJob;
use fresco_engine::store::*;
use fresco_graph::{Map, map};
use store_support::*;

const LONG: Duration = Duration::from_mins(1);

fn run_job(id: &str) -> RunJob {
    RunJob {
        prompt_id: id.into(),
        prompt: Arc::new(Map::new()),
        extra_data: map! {"client_id" => "c"},
        outputs: vec!["1".into()],
        sensitive: map! {"api_key_comfy_org" => "secret"},
        client: Some("c".into()),
    }
}

#[test]
fn a_job_reaches_the_worker_that_waits_and_its_end_comes_back() {
    let (store, passer) = JobStore::passing();
    let worker = std::thread::spawn({
        let store = store.clone();
        move || take(&store)
    });
    let ended = passer.pass(run_job("a"));
    let job = worker.join().unwrap();
    assert_eq!(&*job.prompt_id, "a");
    assert_eq!(job.client_id.as_deref(), Some("c"));
    assert_eq!(job.sensitive.len(), 1);
    assert_eq!(store.remaining(), 1);
    assert_eq!(end(&store, job.task), 0);
    assert!(ended.wait().unwrap().end.is_finished());
    // A second report changes nothing.
    assert_eq!(end(&store, job.task), 0);
    assert_eq!(store.remaining(), 0);
}

#[test]
fn jobs_wait_for_workers_in_their_order() {
    let (store, passer) = JobStore::passing();
    let ends = ["a", "b"].map(|id| passer.pass(run_job(id)));
    assert_eq!((store.remaining(), store.waiting()), (2, 2));
    let (first, second) = (take(&store), take(&store));
    assert_eq!((&*first.prompt_id, &*second.prompt_id), ("a", "b"));
    assert_ne!(first.task, second.task);
    end(&store, second.task);
    end(&store, first.task);
    assert!(ends.into_iter().all(|end| end.wait().is_some()));
}

#[test]
fn a_worker_that_waited_long_enough_loses_no_job() {
    let (store, passer) = JobStore::passing();
    let asked = store.ask_next(&here(), Duration::ZERO);
    assert!(matches!(asked.wait(), Some(Next::Timeout)));
    let _ended = passer.pass(run_job("a"));
    assert_eq!(store.waiting(), 1, "nobody took it");
    assert_eq!(&*take(&store).prompt_id, "a");
}

#[test]
fn workers_are_woken_once() {
    let (store, _passer) = JobStore::passing();
    store.wake();
    assert!(matches!(store.next(&here(), LONG), Next::Woken));
    assert!(matches!(store.next(&here(), Duration::ZERO), Next::Timeout));
}

#[test]
fn a_drained_store_hands_out_nothing_and_a_closed_one_answers_nobody() {
    let (store, passer) = JobStore::passing();
    store.drain().wait().unwrap();
    let ended = passer.pass(run_job("a"));
    assert!(matches!(store.next(&here(), Duration::ZERO), Next::Timeout));
    let asked = store.ask_next(&here(), LONG);
    store.close().wait().unwrap();
    assert!(matches!(asked.wait(), Some(Next::Closed)));
    assert!(ended.wait().is_none());
    assert!(passer.pass(run_job("b")).wait().is_none());
    assert!(matches!(store.next(&here(), LONG), Next::Closed));
    assert_eq!(store.remaining(), 0);
}

#[test]
fn the_queue_shows_what_runs_and_the_history_is_empty() {
    let (store, passer) = JobStore::passing();
    let _ended = passer.pass(run_job("a"));
    let running = || store.queue().wait().unwrap().unwrap().running;
    assert!(running().is_empty(), "nobody has it yet");
    let job = take(&store);
    let shown = running();
    assert_eq!(ids(&shown), ["a"]);
    assert_eq!(&*shown[0].outputs, r#"["1"]"#);
    assert!(!shown[0].extra_data.contains("secret"));
    end(&store, job.task);
    assert!(running().is_empty());
    assert!(pending_ids(&store).is_empty() && history_ids(&store).is_empty());
    assert_eq!(store.history_get("a").wait().unwrap().unwrap(), None);
    assert_eq!(store.clear_pending().wait().unwrap().unwrap(), 0);
    assert!(!store.delete_pending("a").wait().unwrap().unwrap());
    let refused = store.enqueue(new_job()).wait().unwrap().unwrap_err();
    assert!(refused.to_string().contains("front"), "{refused}");
    assert!(store.leases().wait().unwrap().is_empty());
}

fn new_job() -> NewJob {
    job("b", Priority::Auto)
}
