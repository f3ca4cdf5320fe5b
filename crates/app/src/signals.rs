//! Ctrl-C, and what service managers send.

/// What a process was told to stop with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Interrupt,
    Terminate,
}

impl StopSignal {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupted",
            Self::Terminate => "terminated",
        }
    }

    /// What shells expect of a process that such a signal ended.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Signals are noticed from when this is made: before anybody is told where the server is.
pub(crate) struct StopSignals {
    #[cfg(unix)]
    kinds: [Option<tokio::signal::unix::Signal>; 2],
}

impl StopSignals {
    /// Inside of a runtime.
    pub(crate) fn listen() -> Self {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
            Self {
                kinds: kinds.map(|kind| signal(kind).ok()),
            }
        }
        #[cfg(not(unix))]
        Self {}
    }

    /// The first one. A second one ends the program at once, where prompts run that would be waited for; where none
    /// runs, the end is near, and it takes a third. `running` counts prompts.
    #[expect(
        clippy::disallowed_methods,
        reason = "a further signal means that the orderly end takes too long; the store recovers as from a crash"
    )]
    pub(crate) async fn told_to_stop(mut self, running: impl Fn() -> usize + Send + 'static) {
        self.next().await;
        tokio::spawn(async move {
            let mut signal = self.next().await;
            if running() == 0 {
                signal = self.next().await;
            }
            match running() {
                0 => tracing::info!("stopped at once"),
                1 => tracing::warn!("stopped at once; the running prompt will be tried again"),
                n => tracing::warn!("stopped at once; the {n} running prompts will be tried again"),
            }
            std::process::exit(signal.exit_code().into());
        });
    }

    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> StopSignal {
        /// Without a handler there is no signal: wait for the other kind.
        async fn of(kind: &mut Option<tokio::signal::unix::Signal>) {
            match kind {
                Some(kind) => drop(kind.recv().await),
                None => std::future::pending().await,
            }
        }
        let [interrupt, terminate] = &mut self.kinds;
        tokio::select! {
            () = of(interrupt) => StopSignal::Interrupt,
            () = of(terminate) => StopSignal::Terminate,
        }
    }

    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) -> StopSignal {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        StopSignal::Interrupt
    }
}
