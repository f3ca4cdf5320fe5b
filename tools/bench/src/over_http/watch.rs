//! Memory of a process and of the card while a prompt runs, asked for again and again.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::process;

/// The most so far of a figure in MB, since it was last taken.
#[derive(Clone, Default)]
struct Peak(Arc<AtomicU64>);

impl Peak {
    fn see(&self, mb: f64) {
        self.0.fetch_max(mb as u64, Ordering::Relaxed);
    }

    fn take(&self) -> f64 {
        self.0.swap(0, Ordering::Relaxed) as f64
    }
}

pub(super) struct Watch {
    own: Peak,
    card: Peak,
    over: Arc<AtomicBool>,
    driver: Option<Child>,
    threads: Vec<JoinHandle<()>>,
}

/// The most that was seen since the last time.
pub(super) struct Peaks {
    pub(super) own_mb: f64,
    /// None where the driver's own program is not there to ask.
    pub(super) card_mb: Option<f64>,
}

impl Watch {
    pub(super) fn start(pid: u32) -> Self {
        let (own, card) = (Peak::default(), Peak::default());
        let over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let (seen, ended) = (own.clone(), Arc::clone(&over));
        threads.push(thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if let Ok(mb) = process::own_mb(pid) {
                    seen.see(mb);
                }
                thread::park_timeout(Duration::from_millis(20));
            }
        }));
        let mut driver = card_usage().ok();
        if let Some(out) = driver.as_mut().and_then(|child| child.stdout.take()) {
            let seen = card.clone();
            threads.push(thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if let Ok(mib) = line.trim().parse::<f64>() {
                        seen.see(mib * 1.048_576);
                    }
                }
            }));
        }
        Self {
            own,
            card,
            over,
            driver,
            threads,
        }
    }

    pub(super) fn take(&self) -> Peaks {
        Peaks {
            own_mb: self.own.take(),
            card_mb: self.driver.is_some().then(|| self.card.take()),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(mut driver) = self.driver.take() {
            // It may have ended by itself, where there is no card.
            let _ = driver.kill();
            let _ = driver.wait();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The driver's program, which prints how much of the first card is in use ten times a second: asked more often, the driver keeps others waiting.
fn card_usage() -> std::io::Result<Child> {
    let query = ["--id=0", "--query-gpu=memory.used", "--loop-ms=100"];
    Command::new("nvidia-smi")
        .args(query)
        .arg("--format=csv,noheader,nounits")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}
