//! A limit on the size of files (`ulimit -f`, `LimitFSIZE=`) ends a program that writes past it by a signal, unless the
//! signal is handled. Then the write fails, and whoever writes can say what was not saved.

/// Makes writing past the limit an error.
#[cfg(unix)]
pub(crate) fn become_an_error() {
    use tokio::signal::unix::{SignalKind, signal};

    /// `SIGXFSZ`, where Fresco runs.
    const FILE_SIZE_EXCEEDED: i32 = 25;

    // The handler stays after the runtime has gone; it does nothing but be there.
    let handled = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .and_then(|runtime| {
            runtime.block_on(async { signal(SignalKind::from_raw(FILE_SIZE_EXCEEDED)).map(drop) })
        });
    if let Err(error) = handled {
        tracing::warn!("a limit on the size of files would end the program: {error}");
    }
}

#[cfg(not(unix))]
pub(crate) fn become_an_error() {}
