//! What the kernel says about a process: its memory and the processor time it used.

use std::{fs, process::Command, thread};

use anyhow::{Context, Result};

/// Processor time of a process so far, in milliseconds, all threads, user and kernel.
pub(crate) fn cpu_ms(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold spaces; the fields after it do not.
    let rest = stat.rsplit_once(')').context("odd stat line")?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks * 1000.0 / ticks_per_second()?)
}

fn ticks_per_second() -> Result<f64> {
    let output = Command::new("getconf").arg("CLK_TCK").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Resident memory in megabytes (of 1,000,000 bytes).
pub(crate) fn memory_mb(pid: u32) -> Result<f64> {
    status_mb(pid, "VmRSS:")
}

/// The most resident memory so far.
pub(crate) fn peak_mb(pid: u32) -> Result<f64> {
    status_mb(pid, "VmHWM:")
}

/// Resident memory that is no file's.
pub(crate) fn own_mb(pid: u32) -> Result<f64> {
    status_mb(pid, "RssAnon:")
}

fn status_mb(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("no {name} line"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// One line about where this was measured.
pub(crate) fn machine() -> Result<String> {
    let cores = thread::available_parallelism()?;
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| {
            rest.trim_start_matches([' ', '\t', ':'])
        });
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    Ok(format!("{cores} cores, {model}, load {load} at the end"))
}
