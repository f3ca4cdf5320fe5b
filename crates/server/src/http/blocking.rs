//! Work that may wait, off the threads that serve sockets.

use crate::http::error::ApiError;

/// Runs file work off the network threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| ApiError::trouble(format!("a background task failed: {e}")))
}
