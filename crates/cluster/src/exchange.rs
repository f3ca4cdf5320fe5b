//! Questions and answers between processes: [`protocol`](crate::protocol) messages over the connection.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::{Broker, BrokerError, ReceivedMessage};
use crate::protocol::control::{WorkerAnswer, WorkerRequest};
use crate::protocol::{self, RequestResult};

impl Broker {
    /// A message as it is sent: itself, or a reference to it where it is too large.
    pub(crate) fn shorten(&self, message: Vec<u8>) -> Result<Vec<u8>, BrokerError> {
        protocol::shorten(self, message, self.largest_message())
    }

    /// Sends something that nobody answers.
    pub(crate) fn tell<Q: Serialize>(&self, subject: &str, message: &Q) -> Result<(), BrokerError> {
        self.publish(subject, self.shorten(protocol::encode(message))?)
    }

    /// Asks a process something and waits for the answer. The inner error is what that process says instead of one.
    pub(crate) fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        subject: &str,
        request: &Q,
        patience: Duration,
    ) -> Result<RequestResult<A>, BrokerError> {
        let request = self.shorten(protocol::encode(request))?;
        let answer = self.request(subject, request, patience)?;
        let large = protocol::whole(self, &answer)?;
        protocol::decode_answer(large.as_deref().unwrap_or(&answer))
            .map_err(|e| BrokerError::failed(format!("ask {subject}"), e))
    }

    /// The subject on which a worker hears requests.
    pub(crate) fn control_subject(&self, worker: &str) -> String {
        self.subject(&format!("control.{worker}"))
    }

    /// Asks a worker something and waits for the answer.
    pub fn ask_worker(
        &self,
        worker: &str,
        request: &WorkerRequest,
        patience: Duration,
    ) -> Result<RequestResult<WorkerAnswer>, BrokerError> {
        self.ask(&self.control_subject(worker), request, patience)
    }

    /// Answers a request on a thread of its own: some answers read files, or wait for a job.
    pub fn serve<Q, A>(
        self: &Arc<Self>,
        heard: ReceivedMessage,
        answer: impl FnOnce(Q) -> RequestResult<A> + Send + 'static,
    ) where
        Q: DeserializeOwned,
        A: Serialize,
    {
        let me = self.clone();
        let work = move || {
            let request = protocol::whole(&*me, &heard.payload)
                .map_err(|e| e.to_string())
                .and_then(|large| {
                    let bytes = large.as_deref().unwrap_or(&heard.payload);
                    protocol::decode(bytes).map_err(|e| e.to_string())
                });
            let answer = match request {
                Ok(request) => answer(request),
                Err(why) => {
                    tracing::warn!("a request on {} is refused: {why}", heard.subject);
                    Err(why)
                }
            };
            let sent = me.shorten(protocol::encode_answer(&answer));
            if let Err(error) = sent.and_then(|message| me.answer(&heard, message)) {
                tracing::warn!("a request on {} was not answered: {error}", heard.subject);
            }
        };
        let spawned = std::thread::Builder::new()
            .name("answer".into())
            .spawn(work);
        if let Err(error) = spawned {
            tracing::error!("a request cannot be answered: {error}");
        }
    }
}
