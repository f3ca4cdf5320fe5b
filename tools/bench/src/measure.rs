//! The measurements, one function each.

use std::{
    net::SocketAddr,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use fresco_tests::{
    Connection, Frame, Server, Socket, StartOptions,
    chance::Chance,
    server::{free_port, spawn},
    socket::is_end,
    workflow,
};
use serde_json::json;

use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[
    ("start", start),
    ("memory", memory),
    ("prompts", prompts),
    ("object-info", object_info),
    ("chains", chains),
    ("progress", progress),
    ("clients", clients),
    ("enqueue", enqueue),
];

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// From the start of the process to the first 200, on a folder that exists already.
fn start(table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut times = Vec::new();
    for _ in 0..11 {
        let port = free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let begun = Instant::now();
        let mut child = spawn(folder.path(), port, &StartOptions::default());
        let answered = first_answer(address, begun);
        let spent = begun.elapsed();
        child.kill().expect("our own child can be killed");
        child.wait().expect("our own child can be waited for");
        answered?;
        times.push(spent.as_secs_f64());
    }
    table.row("start to first 200", median(times), "s", Some(0.2), "9.9 s");
    Ok(())
}

fn first_answer(address: SocketAddr, begun: Instant) -> Result<()> {
    while begun.elapsed() < Duration::from_secs(30) {
        if let Ok(mut connection) = Connection::open(address)
            && let Ok(answer) = connection.get("/system_stats")
            && answer.status == 200
        {
            return Ok(());
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    bail!("the program does not answer")
}

fn memory(table: &mut Table) -> Result<()> {
    let server = Server::start();
    server.get("/").expect_status(200);
    server.get("/system_stats").expect_status(200);
    let idle = process::memory_mb(server.pid())?;
    table.row("memory when idle", idle, "MB", Some(60.0), "989 MB");
    server.get("/object_info").expect_status(200);
    for colour in 0..100 {
        server.wait_for(&server.queue(&workflow::smallest(colour, "memory"), None));
    }
    let used = process::memory_mb(server.pid())?;
    table.row("memory after 100 small prompts", used, "MB", None, "");
    Ok(())
}

/// EmptyImage to SaveImage, 64x64, a new colour each time, all commits durable.
fn prompts(table: &mut Table) -> Result<()> {
    const COUNT: u64 = 2000;
    let server = Server::start();
    let mut connection = server.connect();
    let mut socket = server.socket("bench");
    let mut post = |colour: u64, client: Option<&str>| -> Result<String> {
        let mut body = json!({"prompt": workflow::smallest(colour, "bench")});
        if let Some(client) = client {
            body["client_id"] = json!(client);
        }
        let answer = connection.post("/prompt", &body)?;
        ensure!(answer.status == 200, "refused: {}", answer.text());
        let id = answer.json()["prompt_id"].as_str().map(str::to_owned);
        id.context("no id")
    };
    // A first few to warm up.
    for colour in 0..50 {
        let id = post(colour, Some("bench"))?;
        socket.run(&id);
    }
    let cpu = process::cpu_ms(server.pid())?;
    let begun = Instant::now();
    for index in 0..COUNT {
        let id = post(1000 + index, Some("bench"))?;
        socket.run(&id);
    }
    let wall = ms(begun.elapsed()) / COUNT as f64;
    let spent = (process::cpu_ms(server.pid())? - cpu) / COUNT as f64;
    table.row(
        "CPU per prompt, one after the other",
        spent,
        "ms",
        Some(0.6),
        "5.9 ms",
    );
    table.row("time per prompt, one after the other", wall, "ms", None, "");

    let cpu = process::cpu_ms(server.pid())?;
    let begun = Instant::now();
    let mut last = String::new();
    for index in 0..COUNT {
        last = post(10_000 + index, None)?;
    }
    let posted = ms(begun.elapsed()) / COUNT as f64;
    server.wait_for(&last);
    let wall = ms(begun.elapsed()) / COUNT as f64;
    let spent = (process::cpu_ms(server.pid())? - cpu) / COUNT as f64;
    table.row("CPU per prompt, queued", spent, "ms", Some(0.6), "5.5 ms");
    table.row("time per prompt, queued", wall, "ms", None, "");
    table.row("time of one POST, queue filling", posted, "ms", None, "");
    Ok(())
}

fn object_info(table: &mut Table) -> Result<()> {
    let server = Server::start();
    let mut connection = server.connect();
    let first = Instant::now();
    let answer = connection.get("/object_info")?;
    let cold = ms(first.elapsed());
    ensure!(answer.status == 200, "status {}", answer.status);
    let mut times = Vec::new();
    for _ in 0..51 {
        let begun = Instant::now();
        connection.get("/object_info")?;
        times.push(ms(begun.elapsed()));
    }
    let nodes = answer.json().as_object().map_or(0, serde_json::Map::len);
    let what = format!(
        "/object_info ({nodes} nodes, {} kB)",
        answer.body.len() / 1000
    );
    table.row(what, median(times), "ms", Some(5.0), "98 ms");
    table.row("/object_info, first call", cold, "ms", None, "");
    Ok(())
}

/// A chain of one-pixel pictures: what is left is the cost of the graph itself.
fn chains(table: &mut Table) -> Result<()> {
    let mut costs = Vec::new();
    for nodes in [500, 1000, 10_000] {
        let server = Server::start();
        let mut connection = server.connect();
        let mut accept = Vec::new();
        let mut run = Vec::new();
        // The kernel's clock is coarse: the same number of nodes in all, whatever the length of the chain.
        let rounds = 50_000 / nodes;
        let before = process::cpu_ms(server.pid())?;
        for round in 0..rounds {
            let prompt = workflow::chain(nodes, 1, round as u64 + 1);
            let body = json!({ "prompt": prompt }).to_string();
            let begun = Instant::now();
            let answer = connection.request("POST", "/prompt", &[], body.as_bytes())?;
            accept.push(begun.elapsed().as_secs_f64());
            ensure!(answer.status == 200, "{nodes}: {}", answer.text());
            let answer = answer.json();
            server.wait_for(answer["prompt_id"].as_str().context("no id")?);
            run.push(ms(begun.elapsed()));
        }
        let cost = (process::cpu_ms(server.pid())? - before) / (rounds * nodes) as f64;
        let target = (nodes == 10_000).then_some(0.3);
        let reference = if nodes >= 1000 { "rejected" } else { "" };
        let what = format!("chain of {nodes}: POST to answer");
        table.row(what, median(accept), "s", target, reference);
        let what = format!("chain of {nodes}: POST to history");
        table.row(what, median(run) / 1000.0, "s", None, "");
        let what = format!("chain of {nodes}: CPU per node, checked and run");
        table.row(what, cost * 1000.0, "µs", None, "");
        costs.push(cost);
    }
    let ratio = costs[2] / costs[0];
    table.row(
        "CPU per node, 10,000 against 500",
        ratio,
        "",
        Some(1.5),
        "quadratic",
    );
    Ok(())
}

/// Bytes one client receives for a run of 1,000 nodes.
fn progress(table: &mut Table) -> Result<()> {
    let server = Server::start();
    let mut socket = server.socket("progress");
    socket.message();
    let before = socket.received;
    let id = server.queue(&workflow::chain(1000, 1, 1), Some("progress"));
    let messages = socket.run(&id);
    let bytes = (socket.received - before) as f64 / 1e6;
    table.row(
        "messages of a run of 1,000 nodes",
        bytes,
        "MB",
        Some(5.0),
        "200 MB",
    );
    let last = messages
        .iter()
        .rfind(|message| message["type"] == "progress_state")
        .context("no progress at all")?;
    let nodes = last["data"]["nodes"].as_object().context("no nodes")?;
    let finished = nodes
        .values()
        .filter(|node| node["state"] == "finished")
        .count();
    ensure!(
        finished == 1000,
        "the last state shows {finished} of 1000 nodes finished"
    );
    Ok(())
}

const CLIENTS: usize = 1000;
const EACH: usize = 3;

/// A thousand clients at once, each with prompts of its own; every one must see how its own prompts ended.
fn clients(table: &mut Table) -> Result<()> {
    let server = Server::start();
    let address = server.address;
    let ready = Arc::new(Barrier::new(CLIENTS + 1));
    let mut threads = Vec::new();
    for number in 0..CLIENTS {
        let ready = Arc::clone(&ready);
        let thread = thread::Builder::new()
            .stack_size(512 * 1024)
            .spawn(move || {
                let name = format!("client-{number}");
                let socket = Socket::try_open(address, &format!("/ws?clientId={name}"), &[]);
                ready.wait();
                socket.map(|socket| client(address, &name, number, socket))
            })?;
        threads.push(thread);
    }
    ready.wait();
    let begun = Instant::now();
    let mut lost = 0;
    let mut refused = 0;
    for thread in threads {
        match thread.join() {
            Ok(Ok(missing)) => lost += missing,
            Ok(Err(_)) => refused += 1,
            Err(_) => lost += EACH,
        }
    }
    let spent = begun.elapsed().as_secs_f64();
    table.row(
        "clients refused, of 1,000",
        f64::from(refused),
        "",
        Some(0.0),
        "",
    );
    table.row(
        "result messages lost, of 3,000 prompts",
        lost as f64,
        "",
        Some(0.0),
        "",
    );
    table.row("1,000 clients, 3 prompts each", spent, "s", None, "");
    let memory = process::memory_mb(server.pid())?;
    table.row("memory with 1,000 clients served", memory, "MB", None, "");
    Ok(())
}

/// Queues its prompts and counts those whose results did not all arrive.
fn client(address: SocketAddr, name: &str, number: usize, mut socket: Socket) -> usize {
    let mut missing = 0;
    for round in 0..EACH {
        let colour = (number * EACH + round) as u64;
        let body = json!({"prompt": workflow::smallest(colour, "many"), "client_id": name});
        // A connection of its own for the moment only, to stay below the limit of open files.
        let answer = Connection::open(address).and_then(|mut c| c.post("/prompt", &body));
        let Ok(answer) = answer else {
            missing += 1;
            continue;
        };
        let answer = answer.json();
        let Some(id) = answer["prompt_id"].as_str() else {
            missing += 1;
            continue;
        };
        let mut results = 0;
        loop {
            match socket.frame() {
                Frame::Text(message, _) if is_end(&message, id) => break,
                Frame::Text(message, _) => {
                    let kind = message["type"].as_str().unwrap_or_default();
                    let ours = message["data"]["prompt_id"] == id;
                    results +=
                        usize::from(ours && matches!(kind, "executed" | "execution_success"));
                }
                Frame::Binary(_) => {}
                Frame::Closed => return missing + EACH - round,
            }
        }
        missing += usize::from(results != 2);
    }
    missing
}

/// Time of one POST with an empty queue and with 10,000 prompts waiting.
fn enqueue(table: &mut Table) -> Result<()> {
    // Without a cache the long prompt that holds the queue does not hold memory too.
    let server = Server::with(&["--cache-none"]);
    let mut chance = Chance::new(1);
    let mut connection = server.connect();
    let blocker = server.queue(&workflow::chain(9000, 1024, chance.draw()), None);
    let mut sample = |connection: &mut Connection, count: usize| -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..count {
            let body = json!({"prompt": workflow::smallest(chance.draw(), "wait")});
            let begun = Instant::now();
            let answer = connection.post("/prompt", &body)?;
            times.push(ms(begun.elapsed()));
            ensure!(answer.status == 200, "refused: {}", answer.text());
        }
        Ok(median(times))
    };
    let empty = sample(&mut connection, 400)?;
    fill(server.address, 9600)?;
    let full = sample(&mut connection, 400)?;
    let waiting = server.get("/prompt").json()["exec_info"]["queue_remaining"].clone();
    let waiting = waiting.as_u64().context("no count")?;
    ensure!(
        waiting > 10_000,
        "only {waiting} prompts waited: the long one ended too soon"
    );
    table.row("POST with nothing pending", empty, "ms", None, "");
    table.row("POST with 10,000 pending", full, "ms", None, "");
    table.row(
        "10,000 pending against none",
        full / empty,
        "",
        Some(1.2),
        "",
    );
    server
        .post("/queue", &json!({"clear": true}))
        .expect_status(200);
    server
        .post("/interrupt", &json!({"prompt_id": blocker}))
        .expect_status(200);
    Ok(())
}

/// Several clients at once, so that commits are shared.
fn fill(address: SocketAddr, count: u64) -> Result<()> {
    const LANES: u64 = 8;
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            thread::spawn(move || -> Result<()> {
                let mut connection = Connection::open(address)?;
                for index in 0..=count / LANES {
                    let colour = lane * count + index;
                    let body = json!({"prompt": workflow::smallest(colour, "fill")});
                    let answer = connection.post("/prompt", &body)?;
                    ensure!(answer.status == 200, "refused: {}", answer.text());
                }
                Ok(())
            })
        })
        .collect();
    for lane in lanes {
        lane.join().expect("a lane returns its errors")?;
    }
    Ok(())
}
