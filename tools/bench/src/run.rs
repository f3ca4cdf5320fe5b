//! One prompt as a client sees it: when each node began, when each step ended.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fresco_tests::{Frame, Server, Socket};
use serde_json::{Value, json};

/// The client that queues prompts and listens.
pub(crate) const CLIENT: &str = "bench";

/// A run's moments, in seconds after it was queued.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// When each node began, in order.
    pub(crate) nodes: Vec<(String, f64)>,
    /// When each step ended.
    pub(crate) steps: Vec<f64>,
    pub(crate) previews: usize,
    pub(crate) end: f64,
    pub(crate) interrupted: bool,
}

impl Run {
    /// How long a node took.
    pub(crate) fn node(&self, id: &str) -> Result<f64> {
        let at = self.nodes.iter().position(|(node, _)| node == id);
        let at = at.with_context(|| format!("node {id} did not run"))?;
        let end = self.nodes.get(at + 1).map_or(self.end, |(_, time)| *time);
        Ok(end - self.nodes[at].1)
    }

    /// The usual time between two steps.
    pub(crate) fn step(&self) -> Result<f64> {
        let mut times: Vec<f64> = self.steps.windows(2).map(|w| w[1] - w[0]).collect();
        ensure!(!times.is_empty(), "a run of one step says nothing");
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// Queues a prompt, with more fields of the request than the prompt itself.
pub(crate) fn queue(server: &Server, prompt: &Value, more: &Value) -> Result<String> {
    let mut body = json!({"prompt": prompt, "client_id": CLIENT});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let answer = server.post("/prompt", &body);
    ensure!(answer.status == 200, "refused: {}", answer.text());
    let id = answer.json()["prompt_id"].as_str().map(str::to_owned);
    id.context("the answer has no prompt_id")
}

/// Runs a prompt to its end. `at_step` is called after each step of the node `sampler`.
pub(crate) fn run(
    server: &Server,
    socket: &mut Socket,
    (prompt, more): (&Value, &Value),
    sampler: &str,
    mut at_step: impl FnMut(&Server, usize),
) -> Result<Run> {
    let begun = Instant::now();
    let id = queue(server, prompt, more)?;
    let mut run = Run::default();
    loop {
        let frame = socket.next_within(Duration::from_mins(5));
        let now = begun.elapsed().as_secs_f64();
        let message = match frame.context("no message for five minutes")? {
            Frame::Binary(_) => {
                run.previews += 1;
                continue;
            }
            Frame::Closed => bail!("the program went away:\n{}", server.log()),
            Frame::Text(message, _) => message,
        };
        let data = &message["data"];
        if data["prompt_id"].as_str().is_some_and(|other| other != id) {
            continue;
        }
        match message["type"].as_str().unwrap_or_default() {
            "executing" => {
                let Some(node) = data["node"].as_str() else {
                    run.end = now;
                    return Ok(run);
                };
                run.nodes.push((node.to_owned(), now));
            }
            "progress" if data["node"] == sampler && data["value"] != 0 => {
                run.steps.push(now);
                at_step(server, run.steps.len());
            }
            "execution_error" => bail!("{data}"),
            "execution_interrupted" => {
                run.end = now;
                run.interrupted = true;
                return Ok(run);
            }
            _ => {}
        }
    }
}
