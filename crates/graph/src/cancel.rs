//! Whether a run is still wanted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::lock;

type Call = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Watchers {
    calls: BTreeMap<u64, Call>,
    next: u64,
}

#[derive(Default)]
struct TokenState {
    /// Apart from the rest, so that loops over numbers can look at it without knowing anything else.
    flag: Arc<AtomicBool>,
    watchers: Mutex<Watchers>,
}

impl TokenState {
    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        lock(&self.watchers)
    }
}

/// Belongs to one run. Asking does not take it: once raised it stays raised, so everybody who works for the run sees it,
/// also a thread that was given up. Clones are the same token.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<TokenState>);

impl CancelToken {
    /// Raises it; whoever watches is told by this thread. Raising it again does nothing.
    pub fn raise(&self) {
        if self.0.flag.swap(true, Ordering::SeqCst) {
            return;
        }
        // Called without the lock: a watcher may drop its watch.
        let calls: Vec<Call> = self.0.watchers().calls.values().cloned().collect();
        for call in calls {
            call();
        }
    }

    pub fn is_raised(&self) -> bool {
        self.0.flag.load(Ordering::SeqCst)
    }

    /// The bare flag, for rooms that know nothing of runs.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0.flag
    }

    /// Calls a function when the token is raised, at once if it is; not any more once the answer is dropped. A call that
    /// races with the drop may still come.
    pub fn on_raise(&self, call: impl Fn() + Send + Sync + 'static) -> CancelWatch {
        let call: Call = Arc::new(call);
        let id = {
            let mut watchers = self.0.watchers();
            let id = watchers.next;
            watchers.next += 1;
            watchers.calls.insert(id, call.clone());
            id
        };
        // Raised before the entry was there, so nobody has called it.
        if self.is_raised() {
            call();
        }
        CancelWatch {
            token: self.clone(),
            id,
        }
    }
}

/// Ends a watch when dropped.
pub struct CancelWatch {
    token: CancelToken,
    id: u64,
}

impl Drop for CancelWatch {
    fn drop(&mut self) {
        self.token.0.watchers().calls.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn stays_raised_and_tells_those_who_still_watch() {
        let token = CancelToken::default();
        let called = Arc::new(AtomicUsize::new(0));
        let count = |n: usize| {
            let called = called.clone();
            move || {
                called.fetch_add(n, Ordering::SeqCst);
            }
        };
        let _early = token.on_raise(count(1));
        drop(token.on_raise(count(100)));
        assert!(!token.is_raised());
        token.clone().raise();
        token.raise();
        assert!(token.is_raised() && token.is_raised());
        assert!(token.flag().load(Ordering::SeqCst));
        assert_eq!(called.load(Ordering::SeqCst), 1);
        let _late = token.on_raise(count(10));
        assert_eq!(called.load(Ordering::SeqCst), 11);
    }
}
