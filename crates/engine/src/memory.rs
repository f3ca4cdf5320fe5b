//! The seam to the memory room: what the engine asks of whoever owns models.

/// Implemented by the memory room; the engine never touches a model.
pub trait MemoryRoom: Send + Sync {
    /// Detach every model from the primary device and forget it, unless its retention says otherwise.
    fn unload_all(&self);
    /// Give allocator caches back. Called at the reference's garbage-collection points.
    fn release_caches(&self);
    /// After every prompt, whatever its end.
    fn after_prompt(&self, prompt_id: &str);
    /// Main memory that can still be had, in bytes; `None` if unknown.
    fn available_ram(&self) -> Option<u64> {
        available_ram()
    }
}

/// No models, nothing to free.
pub struct NoModels;

impl MemoryRoom for NoModels {
    fn unload_all(&self) {}
    fn release_caches(&self) {}
    fn after_prompt(&self, _: &str) {}
}

/// `MemAvailable` of the kernel.
pub fn available_ram() -> Option<u64> {
    meminfo("MemAvailable:")
}

pub fn total_ram() -> Option<u64> {
    meminfo("MemTotal:")
}

fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
