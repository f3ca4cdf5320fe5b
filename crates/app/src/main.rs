//! The `fresco` binary: settings, assembly, logging.

fn main() -> anyhow::Result<()> {
    Ok(())
}
