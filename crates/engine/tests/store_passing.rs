//! The engine's jobs without a database: they go straight to workers, their ends straight back.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test may panic"
)]

mod store_support;

use std::sync::Arc;
use std::time::Duration;

use fresco_engine::store::*;
use fresco_engine::{JobPasser, RunJob};
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
    let passer = JobPasser::default();
    let worker = std::thread::spawn({
        let passer = passer.clone();
        move || take(&passer)
    });
    let ended = passer.pass(run_job("a"));
    let job = worker.join().unwrap();
    assert_eq!(&*job.prompt_id, "a");
    assert_eq!(job.client_id.as_deref(), Some("c"));
    assert_eq!(job.sensitive.len(), 1);
    assert_eq!(passer.remaining(), 1);
    assert_eq!(end(&passer, job.task), 0);
    assert!(ended.wait().unwrap().end.is_finished());
    // A second report changes nothing.
    assert_eq!(end(&passer, job.task), 0);
    assert_eq!(passer.remaining(), 0);
}

#[test]
fn jobs_wait_for_workers_in_their_order() {
    let passer = JobPasser::default();
    let ends = ["a", "b"].map(|id| passer.pass(run_job(id)));
    assert_eq!((passer.remaining(), passer.waiting()), (2, 2));
    let (first, second) = (take(&passer), take(&passer));
    assert_eq!((&*first.prompt_id, &*second.prompt_id), ("a", "b"));
    assert_ne!(first.task, second.task);
    end(&passer, second.task);
    end(&passer, first.task);
    assert!(ends.into_iter().all(|end| end.wait().is_some()));
}

#[test]
fn a_worker_that_waited_long_enough_loses_no_job() {
    let passer = JobPasser::default();
    let asked = passer.ask_next(&here(), None, Duration::ZERO);
    assert!(matches!(asked.wait(), Some(Next::Timeout)));
    let _ended = passer.pass(run_job("a"));
    assert_eq!(passer.waiting(), 1, "nobody took it");
    assert_eq!(&*take(&passer).prompt_id, "a");
}

#[test]
fn workers_are_woken_once() {
    let passer = JobPasser::default();
    passer.wake();
    assert!(matches!(next(&passer, LONG), Next::Woken));
    assert!(matches!(next(&passer, Duration::ZERO), Next::Timeout));
}

#[test]
fn a_drained_store_hands_out_nothing_and_a_closed_one_answers_nobody() {
    let passer = JobPasser::default();
    passer.drain().wait().unwrap();
    let ended = passer.pass(run_job("a"));
    assert!(matches!(next(&passer, Duration::ZERO), Next::Timeout));
    let asked = passer.ask_next(&here(), None, LONG);
    passer.close().wait().unwrap();
    assert!(matches!(asked.wait(), Some(Next::Closed)));
    assert!(ended.wait().is_none());
    assert!(passer.pass(run_job("b")).wait().is_none());
    assert!(matches!(next(&passer, LONG), Next::Closed));
    assert_eq!(passer.remaining(), 0);
}

#[test]
fn the_queue_shows_what_runs() {
    let passer = JobPasser::default();
    let _ended = passer.pass(run_job("a"));
    let running = || passer.queue().wait().unwrap().unwrap().running;
    assert!(running().is_empty(), "nobody has it yet");
    let job = take(&passer);
    let shown = running();
    assert_eq!(ids(&shown), ["a"]);
    assert_eq!(&*shown[0].outputs, r#"["1"]"#);
    assert!(!shown[0].extra_data.contains("secret"));
    end(&passer, job.task);
    assert!(running().is_empty());
}
