//! Workers on other machines: what the way through the broker costs a small job.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use fresco_tests::{Connection, Server, Socket, cluster::Cluster, workflow};
use serde_json::json;

use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[("broker", broker), ("shared", shared)];

/// Jobs that count, one after the other.
const JOBS: u64 = 500;
const WARM_UP: u64 = 50;

/// Runs jobs one after the other and gives the time of each in milliseconds.
struct Client {
    connection: Connection,
    socket: Socket,
}

impl Client {
    fn open(address: SocketAddr) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(address)?,
            socket: Socket::open(address, "/ws?clientId=bench"),
        })
    }

    fn run(&mut self, colour: u64) -> Result<f64> {
        let body = json!({"prompt": workflow::smallest(colour, "bench"), "client_id": "bench"});
        let begun = Instant::now();
        let answer = self.connection.post("/prompt", &body)?;
        ensure!(answer.status == 200, "refused: {}", answer.text());
        let answer = answer.json();
        let id = answer["prompt_id"].as_str().context("no id")?;
        let messages = self.socket.run(id);
        let end = messages.iter().any(|m| m["type"] == "execution_success");
        ensure!(end, "the job failed: {messages:?}");
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cpu(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| process::cpu_ms(*pid)).sum()
}

/// A small job here, and through the broker on a worker of the same machine.
fn broker(table: &mut Table) -> Result<()> {
    let server = Server::start();
    let mut local = Client::open(server.address)?;
    let mut cluster = Cluster::new(1, 1)?;
    cluster.start()?;
    wait_for_worker(&cluster)?;
    let front = cluster.fronts[0].process.pid().context("no front")?;
    let worker = cluster.workers[0].process.pid().context("no worker")?;
    let nats = cluster.nats.pid().context("no broker")?;
    let mut far = Client::open(cluster.fronts[0].address)?;
    for colour in 0..WARM_UP {
        local.run(colour)?;
        far.run(colour)?;
    }
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let start = (cpu(&[server.pid()])?, cpu(&[front, worker])?, cpu(&[nats])?);
    // In turns, so that what else the machine does falls on both alike.
    for colour in 1000..1000 + JOBS {
        here.push(local.run(colour)?);
        there.push(far.run(colour)?);
    }
    let each = |now: f64, before: f64| (now - before) / JOBS as f64;
    let cpu_here = each(cpu(&[server.pid()])?, start.0);
    let cpu_there = each(cpu(&[front, worker])?, start.1);
    let cpu_nats = each(cpu(&[nats])?, start.2);
    let (here, there) = (median(here), median(there));
    table.row("small job on a worker of the process", here, "ms", None, "");
    table.row("small job through the broker", there, "ms", None, "");
    table.row("the broker path adds", there - here, "ms", Some(3.0), "");
    table.row("CPU per job, in the process", cpu_here, "ms", None, "");
    table.row("CPU per job, front and worker", cpu_there, "ms", None, "");
    table.row("CPU per job, nats-server", cpu_nats, "ms", None, "");
    let added = cpu_there - cpu_here;
    table.row("CPU that the broker path adds", added, "ms", Some(1.0), "");
    Ok(())
}

/// Queued jobs over two fronts and two workers.
fn shared(table: &mut Table) -> Result<()> {
    const EACH: u64 = 500;
    let mut cluster = Cluster::new(2, 2)?;
    cluster.start()?;
    wait_for_worker(&cluster)?;
    let begun = Instant::now();
    let mut last = Vec::new();
    for front in &cluster.fronts {
        let mut connection = front.connect()?;
        for colour in 0..EACH {
            let body = json!({"prompt": workflow::smallest(colour, "shared")});
            let answer = connection.post("/prompt", &body)?;
            ensure!(answer.status == 200, "refused: {}", answer.text());
            if colour + 1 == EACH {
                let id = answer.json()["prompt_id"].as_str().map(str::to_owned);
                last.push(id.context("no id")?);
            }
        }
    }
    for (front, id) in cluster.fronts.iter().zip(&last) {
        front.wait_for(id)?;
    }
    let rate = (EACH * 2) as f64 / begun.elapsed().as_secs_f64();
    table.row(
        "two fronts, two workers: small jobs",
        rate,
        "a second",
        None,
        "",
    );
    Ok(())
}

/// Until a first job ran.
fn wait_for_worker(cluster: &Cluster) -> Result<()> {
    for front in &cluster.fronts {
        let id = front.queue(&workflow::smallest(0xabcdef, "first"))?;
        front.wait_for(&id)?;
    }
    thread::park_timeout(Duration::from_millis(200));
    Ok(())
}
