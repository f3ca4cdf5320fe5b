//! What encoders give and decoders take.

/// One coded picture, or one coded piece of sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub data: Vec<u8>,
    /// Can be decoded without those before it.
    pub key: bool,
}

/// Sound in memory: samples of all channels, one time after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sound {
    pub rate: u32,
    pub channels: usize,
    pub samples: Vec<f32>,
}

impl Sound {
    /// Samples of one channel.
    pub fn len(&self) -> usize {
        self.samples.len() / self.channels.max(1)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn seconds(&self) -> f64 {
        self.len() as f64 / f64::from(self.rate.max(1))
    }
}

/// Texts that a file carries, in order.
pub type Tags = Vec<(String, String)>;

/// Sound as it is in a container: packets that each hold the same time.
#[derive(Clone, Debug)]
pub(crate) struct CodedSound {
    pub(crate) rate: u32,
    pub(crate) channels: u16,
    /// Samples that a packet adds.
    pub(crate) step: u32,
    /// Samples at the front that are not to be heard.
    pub(crate) skip: u32,
    /// Samples that are.
    pub(crate) length: u64,
    /// What a decoder needs to know first.
    pub(crate) config: Vec<u8>,
    pub(crate) packets: Vec<Vec<u8>>,
}
