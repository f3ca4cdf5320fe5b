//! What is sent to one socket, and what it waits for.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::ws::Message;
use fresco_graph::lock;

/// Whether the submitter of one prompt has its answer.
pub(crate) struct AnswerGate {
    pub(crate) settle: Duration,
    /// When its frames may go.
    pub(crate) ready: Mutex<Option<Instant>>,
}

impl AnswerGate {
    /// Not before this; nothing while there is no answer.
    pub(crate) fn ready_at(&self) -> Option<Instant> {
        *lock(&self.ready)
    }
}

/// What may happen to a frame when its reader is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Must arrive.
    Result,
    /// A newer snapshot says the same and more.
    Snapshot,
    /// A bar's position.
    Bar,
    /// A picture of something unfinished.
    Preview,
}

impl Class {
    const ALL: [Self; 4] = [Self::Result, Self::Snapshot, Self::Bar, Self::Preview];

    /// As it is told to another front.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.code() == code)
    }
}

#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) message: Message,
    pub(crate) class: Class,
    /// It waits until its prompt's submitter was answered, and whatever comes after it waits too.
    pub(crate) after: Option<Arc<AnswerGate>>,
}

impl Frame {
    pub(crate) fn new(message: Message, class: Class) -> Self {
        Self {
            message,
            class,
            after: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.message {
            Message::Text(t) => t.len(),
            Message::Binary(b) => b.len(),
            _ => 0,
        }
    }
}
