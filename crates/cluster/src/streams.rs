//! What a NATS server keeps for fronts and workers: the stream of events and outcomes, and the bucket of files.
//!
//! Where the server is one of a NATS cluster, both are kept three times, so that the loss of a node stops neither; two nodes are no help,
//! since neither may decide without the other. What is kept fewer times than it could be, because it was made when the cluster was smaller or
//! a node was away, is spread out at the next connection and by a look that fronts take now and then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::stream::{self, Stream};
use async_nats::jetstream::{ErrorCode, object_store};
use bytes::Bytes;
use fresco_graph::lock;

use crate::connection::{Broker, BrokerError, chain};

/// How often something is kept in a NATS cluster.
const REPLICAS: usize = 3;
/// How long events and outcomes are kept for a front that is away.
const EVENTS_AGE: Duration = Duration::from_hours(24 * 3);
/// Room for them: the oldest go first.
const EVENTS_BYTES: i64 = 1 << 30;
/// How long files are kept.
pub(crate) const FILES_AGE: Duration = Duration::from_hours(24 * 2);
/// Room for them; a server with less is asked for less.
const FILES_BYTES: [i64; 4] = [64 << 30, 16 << 30, 4 << 30, 1 << 30];
/// Messages that are stored twice within this time are stored once.
const DUPLICATES: Duration = Duration::from_mins(2);
/// How long a stored message is waited for. Short: whoever follows a job also has its lease to renew.
const READING: Duration = Duration::from_secs(2);

/// Whether the cluster said that it cannot have this so often or this large, and not that it is in trouble just now.
fn is_refusal(error: &CreateStreamError) -> bool {
    let CreateStreamErrorKind::JetStream(error) = error.kind() else {
        return false;
    };
    let passing = [
        ErrorCode::CLUSTER_NOT_AVAILABLE,
        ErrorCode::CLUSTER_NOT_LEADER,
        ErrorCode::CLUSTER_NOT_ACTIVE,
        ErrorCode::CLUSTER_NOT_ASSIGNED,
    ];
    !passing.contains(&error.error_code())
}

impl Broker {
    fn is_clustered(&self) -> bool {
        self.client.server_info().cluster.is_some()
    }

    fn bucket_name(&self) -> String {
        format!("{}_files", self.prefix)
    }

    fn events_config(&self) -> stream::Config {
        stream::Config {
            name: format!("{}_EVENTS", self.prefix.to_uppercase()),
            description: Some("Fresco: events and outcomes of jobs".to_owned()),
            subjects: vec![self.subject("event.>")],
            max_age: EVENTS_AGE,
            max_bytes: EVENTS_BYTES,
            // Outcomes of fronts that are gone for good make room for new ones.
            discard: stream::DiscardPolicy::Old,
            duplicate_window: DUPLICATES,
            allow_direct: true,
            ..stream::Config::default()
        }
    }

    /// As the client library makes buckets, which cannot say how often and from whom it is read.
    fn files_config(&self) -> stream::Config {
        let bucket = self.bucket_name();
        stream::Config {
            name: format!("OBJ_{bucket}"),
            description: Some("Fresco: files by the hash of their content".to_owned()),
            subjects: vec![format!("$O.{bucket}.C.>"), format!("$O.{bucket}.M.>")],
            max_age: FILES_AGE,
            max_bytes: FILES_BYTES[0],
            discard: stream::DiscardPolicy::New,
            allow_rollup: true,
            allow_direct: true,
            ..stream::Config::default()
        }
    }

    /// Makes what is needed on the server, or finds it there. Each time: a server that lost its disk has to be given both again.
    pub(crate) async fn prepare_streams(&self) -> Result<(), String> {
        let events = self
            .stream(self.events_config(), &[EVENTS_BYTES])
            .await
            .map_err(|e| format!("the stream of events cannot be used: {}", chain(&e)))?;
        let files = self
            .stream(self.files_config(), &FILES_BYTES)
            .await
            .map_err(|e| format!("the store of files cannot be used: {}", chain(&e)))?;
        let mut short = false;
        for stream in [&events, &files] {
            short |= !self.spread(stream.get_info().await.ok()).await;
        }
        self.short_of_replicas.store(short, Ordering::Release);
        let bucket = self.context.get_object_store(self.bucket_name()).await;
        let bucket =
            bucket.map_err(|e| format!("the store of files cannot be used: {}", chain(&e)))?;
        *lock(&self.files) = Some(bucket);
        let _ = self.events.set(events);
        Ok(())
    }

    /// A stream, made if it is not there: as often as it can be kept, and as large.
    async fn stream(
        &self,
        config: stream::Config,
        sizes: &[i64],
    ) -> Result<Stream, CreateStreamError> {
        let name = config.name.clone();
        let absent = match self.context.get_stream(&name).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let is_absent =
            absent.to_string().contains("not found") || chain(&absent).contains("10059");
        if !is_absent {
            return Err(CreateStreamError::with_source(
                CreateStreamErrorKind::Response,
                absent,
            ));
        }
        let replicas: &[usize] = if self.is_clustered() {
            &[REPLICAS, 1]
        } else {
            &[1]
        };
        let mut refusal = None;
        for &num_replicas in replicas {
            for &max_bytes in sizes {
                let wanted = stream::Config {
                    num_replicas,
                    max_bytes,
                    // Any node answers those reads, also one that does not have yet what another has just taken.
                    allow_direct: config.allow_direct && num_replicas == 1,
                    ..config.clone()
                };
                match self.context.create_stream(wanted).await {
                    Ok(made) => return Ok(made),
                    Err(error) if is_refusal(&error) => refusal = Some(error),
                    Err(error) => return Err(error),
                }
            }
        }
        // Another process may have made it at the same moment.
        if let Ok(found) = self.context.get_stream(&name).await {
            return Ok(found);
        }
        Err(refusal.unwrap_or_else(|| CreateStreamError::new(CreateStreamErrorKind::NotFound)))
    }

    /// Has a stream kept as often as the cluster can. False: it is not, and may be later.
    async fn spread(&self, info: Option<stream::Info>) -> bool {
        if !self.is_clustered() {
            return true;
        }
        let Some(info) = info else {
            return false;
        };
        if info.config.num_replicas >= REPLICAS {
            return true;
        }
        let had = info.config.max_bytes;
        let used = i64::try_from(info.state.bytes).unwrap_or(i64::MAX);
        let smaller = FILES_BYTES.into_iter();
        let smaller = smaller.filter(|&bytes| bytes < had && bytes > used);
        for max_bytes in std::iter::once(had).chain(smaller) {
            let wanted = stream::Config {
                num_replicas: REPLICAS,
                max_bytes,
                allow_direct: false,
                ..info.config.clone()
            };
            let name = &wanted.name;
            match self.context.update_stream(&wanted).await {
                Ok(_) => {
                    tracing::info!(
                        "{name} is kept by {REPLICAS} NATS nodes from now on, before by {}",
                        info.config.num_replicas
                    );
                    return true;
                }
                Err(error) if is_refusal(&error) => {
                    tracing::debug!("{name} is not spread yet: {}", chain(&error));
                }
                Err(error) => {
                    tracing::debug!("{name} is not spread yet: {}", chain(&error));
                    return false;
                }
            }
        }
        false
    }

    /// Looks whether what is kept by one node can be kept by three now. Does not wait.
    pub(crate) fn tend_streams(self: &Arc<Self>) {
        if !self.short_of_replicas.load(Ordering::Acquire) || !self.is_ready() {
            return;
        }
        let me = self.clone();
        self.runtime.spawn(async move {
            if let Err(why) = me.prepare_streams().await {
                tracing::debug!("NATS at {}: {why}", me.address());
            }
        });
    }

    /// The store of files, once it is there.
    pub(crate) fn bucket(&self) -> Result<object_store::ObjectStore, BrokerError> {
        self.check_connected()?;
        let none = || BrokerError::NotReady("its store of files is not there yet".to_owned());
        lock(&self.files).clone().ok_or_else(none)
    }

    /// The next stored message of a subject at or after a place in the stream, with its own place. Asked of the node that decides: others
    /// may not have yet what that one has taken.
    pub fn stored(&self, subject: &str, from: u64) -> Result<Option<(u64, Bytes)>, BrokerError> {
        self.check_connected()?;
        let what = format!("read what is stored for {subject}");
        let Some(stream) = self.events.get() else {
            return Err(BrokerError::NotReady(
                "its stream of events is not there yet".to_owned(),
            ));
        };
        let read = async {
            let next = stream
                .raw_message_builder()
                .sequence(from.max(1))
                .next_by_subject(subject)
                .send();
            match next.await {
                Ok(message) => Ok(Some((message.sequence, message.payload))),
                Err(error) if error.kind() == stream::RawMessageErrorKind::NoMessageFound => {
                    Ok(None)
                }
                Err(error) => Err(BrokerError::failed(&what, chain(&error))),
            }
        };
        self.wait(&what, READING, read)
    }

    /// Forgets what is stored for a subject.
    pub fn forget(&self, subject: &str) -> Result<(), BrokerError> {
        self.check_connected()?;
        let what = format!("forget what is stored for {subject}");
        let Some(stream) = self.events.get() else {
            return Ok(());
        };
        let purge = async {
            let purged = stream.purge().filter(subject).await;
            purged
                .map(drop)
                .map_err(|e| BrokerError::failed(&what, chain(&e)))
        };
        self.wait(&what, READING, purge)
    }
}
