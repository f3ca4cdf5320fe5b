//! What clients of a cluster hear, whoever was away while their prompts ended. Skipped where there is no `nats-server`.

use std::time::Duration;

use anyhow::Result;
use fresco_tests::{
    Socket,
    cluster::{Cluster, nats_server},
    socket::Frame,
    workflow,
};
use serde_json::{Value, json};

/// Queues a prompt of a client that runs long enough for its front to be killed meanwhile, and waits until it runs.
fn long_prompt(cluster: &Cluster, front: usize, client: &str) -> Result<String> {
    let body = json!({"prompt": workflow::chain(2000, 512, 3), "client_id": client});
    let answer = cluster.fronts[front].post("/prompt", &body)?;
    let id = answer["prompt_id"].as_str().unwrap_or_default().to_owned();
    cluster.until("the job to run", |cluster| {
        // Handed out is not yet begun.
        cluster.workers[0].process.log().contains("got prompt")
    })?;
    Ok(id)
}

fn until_worker_is_done(cluster: &Cluster) -> Result<()> {
    cluster.until("the worker to be done", |cluster| {
        cluster.workers[0].process.log().contains("Prompt executed")
    })
}

fn count(messages: &[Value], kind: &str, id: &str) -> usize {
    let of = |m: &&Value| m["type"] == kind && m["data"]["prompt_id"] == id;
    messages.iter().filter(of).count()
}

/// The end of a prompt as its client hears it, in order and once.
fn check_end(messages: &[Value], id: &str) {
    for kind in ["executed", "execution_success"] {
        assert_eq!(count(messages, kind, id), 1, "{kind}: {messages:?}");
    }
    let at = |kind: &str| messages.iter().position(|m| m["type"] == kind);
    assert!(at("executed") < at("execution_success"), "{messages:?}");
}

/// Nothing of a prompt comes any more.
fn check_silence(socket: &mut Socket, id: &str) {
    while let Some(frame) = socket.next_within(Duration::from_millis(1500)) {
        if let Frame::Text(message, text) = frame {
            assert_ne!(message["data"]["prompt_id"], id, "again: {text}");
        }
    }
}

#[test]
fn a_client_that_comes_back_after_its_front_did_hears_the_end() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    cluster.start()?;
    let address = cluster.fronts[0].address;
    let socket = Socket::open(address, "/ws?clientId=named");
    let id = long_prompt(&cluster, 0, "named")?;
    cluster.fronts[0].process.kill();
    drop(socket);
    until_worker_is_done(&cluster)?;
    cluster.fronts[0].process.start()?;
    cluster.fronts[0].until_ready()?;
    // It ends before anybody listens.
    cluster.fronts[0].wait_for(&id)?;
    let mut stranger = Socket::open(address, "/ws?clientId=stranger");
    let mut back = Socket::open(address, "/ws?clientId=named");
    check_end(&back.run(&id), &id);
    drop(back);
    let mut again = Socket::open(address, "/ws?clientId=named");
    check_silence(&mut again, &id);
    check_silence(&mut stranger, &id);
    Ok(())
}

#[test]
fn a_client_of_one_front_hears_the_end_of_what_another_missed() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(2, 1)?;
    cluster.start()?;
    let mut socket = Socket::open(cluster.fronts[0].address, "/ws?clientId=named");
    let id = long_prompt(&cluster, 1, "named")?;
    cluster.fronts[1].process.kill();
    until_worker_is_done(&cluster)?;
    // The front that has the job hears of its client only when the job has ended.
    cluster.fronts[0].process.signal("STOP");
    cluster.fronts[1].process.start()?;
    cluster.fronts[1].until_ready()?;
    cluster.fronts[1].wait_for(&id)?;
    cluster.fronts[0].process.signal("CONT");
    check_end(&socket.run(&id), &id);
    check_silence(&mut socket, &id);
    Ok(())
}

#[test]
fn a_client_whose_front_dies_hears_the_end_from_another() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(2, 1)?;
    cluster.start()?;
    let mut socket = Socket::open(cluster.fronts[0].address, "/ws?clientId=named");
    // The front that has the job knows of the client.
    let small = json!({"prompt": workflow::smallest(1, "first"), "client_id": "named"});
    let answer = cluster.fronts[1].post("/prompt", &small)?;
    socket.run(answer["prompt_id"].as_str().unwrap_or_default());
    let body = json!({"prompt": workflow::chain(1000, 512, 3), "client_id": "named"});
    let answer = cluster.fronts[1].post("/prompt", &body)?;
    let id = answer["prompt_id"].as_str().unwrap_or_default().to_owned();
    cluster.fronts[0].process.kill();
    drop(socket);
    cluster.fronts[1].wait_for(&id)?;
    let mut back = Socket::open(cluster.fronts[1].address, "/ws?clientId=named");
    let messages = back.run(&id);
    assert_eq!(
        count(&messages, "execution_success", &id),
        1,
        "{messages:?}"
    );
    drop(back);
    let mut again = Socket::open(cluster.fronts[1].address, "/ws?clientId=named");
    check_silence(&mut again, &id);
    Ok(())
}

#[test]
fn a_client_is_told_that_its_prompt_is_held() -> Result<()> {
    if nats_server().is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::new(1, 1)?;
    cluster.start()?;
    let mut socket = Socket::open(cluster.fronts[0].address, "/ws?clientId=named");
    let body = json!({"prompt": workflow::chain(2000, 512, 3), "client_id": "named"});
    let answer = cluster.fronts[0].post("/prompt", &body)?;
    let id = answer["prompt_id"].as_str().unwrap_or_default().to_owned();
    for time in 1..=5 {
        cluster.until("the worker to begin", |cluster| {
            let log = cluster.workers[0].process.log();
            log.matches("got prompt").count() == time
        })?;
        cluster.workers[0].process.kill();
        cluster.workers[0].process.start()?;
    }
    let messages = socket.until(|message| message["type"] == "fresco_held");
    let held = &messages[messages.len() - 1]["data"];
    assert_eq!(held["prompt_id"], json!(id), "{held}");
    assert!(
        held["reason"]
            .as_str()
            .is_some_and(|why| why.contains("5 times")),
        "{held}"
    );
    Ok(())
}
