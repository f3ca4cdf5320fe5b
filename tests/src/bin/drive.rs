//! Drives programs of other people against the built server: `drive clients [NAME]`, `drive frontend VERSION ROOT`.
//!
//! `cargo xtask clients` and `cargo xtask frontends` install what is needed first and say where in `FRESCO_CI_CACHE`.

#![expect(
    clippy::print_stdout,
    reason = "a driver reports to the person who started it"
)]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use fresco_tests::{Server, StartOptions, chance::Chance, picture, tiny::Tiny, workflow};

struct Client {
    name: &'static str,
    program: Program,
    script: &'static str,
}

enum Program {
    Python,
    Node,
}

const CLIENTS: &[Client] = &[
    Client {
        name: "comfy-cli",
        program: Program::Python,
        script: "comfy_cli.py",
    },
    Client {
        name: "comfy-api-simplified",
        program: Program::Python,
        script: "comfy_api_simplified_run.py",
    },
    Client {
        name: "comfy-script",
        program: Program::Python,
        script: "comfy_script_run.py",
    },
    Client {
        name: "stable-canvas",
        program: Program::Node,
        script: "stable-canvas.mjs",
    },
    Client {
        name: "comfy-ui-client",
        program: Program::Node,
        script: "comfy-ui-client.mjs",
    },
    Client {
        name: "saintno",
        program: Program::Node,
        script: "saintno.mjs",
    },
];

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["clients"] => clients(None),
        ["clients", name] => clients(Some(name)),
        ["frontend", version, root] => front_end(version, root),
        _ => bail!("usage: drive clients [NAME] | drive frontend VERSION ROOT"),
    }
}

fn cache() -> Result<PathBuf> {
    let path = env::var_os("FRESCO_CI_CACHE").context("FRESCO_CI_CACHE is not set")?;
    Ok(PathBuf::from(path))
}

fn clients(only: Option<&str>) -> Result<()> {
    let chosen: Vec<&Client> = CLIENTS
        .iter()
        .filter(|client| only.is_none_or(|name| name == client.name))
        .collect();
    ensure!(!chosen.is_empty(), "no client of that name");
    let mut failures = Vec::new();
    for client in chosen {
        let begun = Instant::now();
        let outcome = client.check();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        let spent = begun.elapsed().as_secs_f64();
        println!("client {}: {verdict} in {spent:.1} s", client.name);
        if let Err(error) = outcome {
            println!("{error:#}");
            failures.push(client.name);
        }
    }
    ensure!(failures.is_empty(), "failed: {}", failures.join(", "));
    Ok(())
}

impl Client {
    /// Runs the client's script, which runs the workflow twice, and looks at what the server has to show for it.
    fn check(&self) -> Result<()> {
        let server = Server::start();
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("workflow.json");
        let colour = Chance::new(Chance::seed()).draw();
        let prompt = workflow::picture(colour, "client");
        fs::write(&file, serde_json::to_vec_pretty(&prompt)?)?;
        let mut command = self.command()?;
        command
            .env("FRESCO_URL", server.url())
            .env("FRESCO_HOST", server.address.ip().to_string())
            .env("FRESCO_PORT", server.address.port().to_string())
            .env("FRESCO_WORKFLOW", &file)
            .env("HOME", scratch.path())
            .env("DO_NOT_TRACK", "1")
            .env("PYTHONUNBUFFERED", "1")
            .current_dir(scratch.path());
        let outcome = run(&mut command, Duration::from_mins(3));
        if outcome.is_err() {
            println!("the server printed:\n{}", server.log());
        }
        outcome?;
        check_runs(&server)
    }

    fn command(&self) -> Result<Command> {
        let cache = cache()?;
        Ok(match self.program {
            Program::Python => {
                let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
                let venv = cache.join(format!("venv-{}", self.name));
                let mut command = Command::new(venv.join("bin/python"));
                command.arg(scripts.join(self.script));
                command
            }
            Program::Node => {
                let mut command = Command::new("node");
                command.arg(cache.join("node").join(self.script));
                command
            }
        })
    }
}

/// Two runs, both successful, the second from the cache, and whole pictures.
fn check_runs(server: &Server) -> Result<()> {
    let history = server.get("/history").expect_status(200).json();
    let entries: Vec<_> = history.as_object().into_iter().flatten().collect();
    ensure!(entries.len() == 2, "{} runs in the history", entries.len());
    for (id, entry) in &entries {
        ensure!(entry["status"]["status_str"] == "success", "{id}: {entry}");
    }
    let messages = entries[1].1["status"]["messages"].as_array();
    let cached = messages
        .into_iter()
        .flatten()
        .find(|message| message[0] == "execution_cached")
        .and_then(|message| message[1]["nodes"].as_array())
        .map_or(0, Vec::len);
    ensure!(cached == 3, "{cached} of 3 nodes came from the cache");
    let mut pictures = 0;
    for entry in fs::read_dir(server.base.join("output"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "png") {
            picture::read_file(&path)?;
            pictures += 1;
        }
    }
    ensure!(pictures >= 1, "no picture was saved");
    Ok(())
}

fn front_end(version: &str, root: &str) -> Result<()> {
    let cache = cache()?;
    check_found(Path::new(root))?;
    // With a pack: its script and its nodes must be in the editor, too.
    let base = tempfile::tempdir()?;
    let pack = Path::new(env!("CARGO_MANIFEST_DIR")).join("packs/plain");
    copy_folder(&pack, &base.path().join("custom_nodes/plain"))?;
    let server = Server::start_with(StartOptions {
        arguments: vec!["--front-end-root", root],
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let mut command = Command::new("node");
    command
        .arg(cache.join("node/editor.mjs"))
        .arg(server.url())
        .arg(&cache)
        .arg(version);
    let outcome = run(&mut command, Duration::from_mins(5));
    if outcome.is_err() {
        println!("the server printed:\n{}", server.log());
    }
    outcome?;
    check_runs(&server)?;
    words(version, root, &cache)?;
    println!("front-end {version}: ok");
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// A picture from words, with live previews.
fn words(version: &str, root: &str, cache: &Path) -> Result<()> {
    let base = tempfile::tempdir()?;
    Tiny::default().write(base.path(), "model.safetensors")?;
    let server = Server::start_with(StartOptions {
        arguments: vec!["--front-end-root", root, "--preview-method", "latent2rgb"],
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let mut command = Command::new("node");
    command
        .arg(cache.join("node/words.mjs"))
        .arg(server.url())
        .arg(cache)
        .arg(version);
    let outcome = run(&mut command, Duration::from_mins(5));
    if outcome.is_err() {
        println!("the server printed:\n{}", server.log());
    }
    outcome
}

/// The same front-end is found as an installed package: its folder stands two levels above its pages.
fn check_found(root: &Path) -> Result<()> {
    let packages = root.ancestors().nth(2).context("the root is too high up")?;
    let packages = packages.to_string_lossy();
    let server = Server::with(&["--front-end", "comfy", "--python", &packages]);
    let page = server.get("/").expect_status(200);
    ensure!(
        page.body == fs::read(root.join("index.html"))?,
        "the package in {packages} was not found"
    );
    Ok(())
}

/// Runs to the end, but not longer than `limit`.
fn run(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let pid = child.id();
    let (sender, ended) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let status = child.wait();
        // The receiver is gone only if the limit passed, and then the outcome is known.
        let _ = sender.send(status);
    });
    if let Ok(status) = ended.recv_timeout(limit) {
        waiter.join().expect("the waiting thread does not panic");
        let status = status?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    } else {
        kill(pid)?;
        bail!("it did not end within {} s", limit.as_secs())
    }
}

fn kill(pid: u32) -> Result<()> {
    let child: std::io::Result<Child> = Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .spawn();
    child?.wait()?;
    Ok(())
}
