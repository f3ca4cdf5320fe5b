//! Wrong tokens are slowed down, address by address: guessing costs time however many connections are used for it.
//!
//! Each address may make a few guesses at once and then one per [`PAUSE`]. A guess beyond that waits for its turn, the
//! right one too, or its answer would come before those of the wrong ones and waiting would cost nothing; nobody is locked
//! out. A connection that has shown the right token does not wait again, and a wrong one that was answered before is
//! no new guess: a forgotten tab with an old cookie does not slow its neighbours.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fresco_graph::lock;

/// Time that one guess costs.
const PAUSE: Duration = Duration::from_secs(1);
/// Guesses that cost nothing yet.
const FREE: u32 = 10;
/// Longest wait for a turn; whoever would wait longer is told to come again.
const LONGEST: Duration = Duration::from_secs(5);
/// Addresses remembered.
const ADDRESSES: usize = 4096;
/// Wrong tokens remembered of an address.
const KNOWN: usize = 8;

pub(crate) type Digest = [u8; 32];

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    /// The right token was shown on this connection.
    proven: Arc<AtomicBool>,
}

impl Peer {
    pub(crate) fn new(ip: IpAddr) -> Self {
        Self {
            ip: group(ip),
            proven: Arc::default(),
        }
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    pub(crate) fn set_proven(&self, proven: bool) {
        self.proven.store(proven, Ordering::Relaxed);
    }
}

/// What counts as one address: one customer of a provider has a whole /64 of IPv6.
fn group(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        ip => ip,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Now,
    After(Duration),
    /// Too many wait already; worth another try then.
    Refused(Duration),
    /// Wrong, and answered before.
    KnownWrong,
}

/// When all guesses so far are paid for.
struct Record {
    paid: Instant,
    known: VecDeque<Digest>,
    warned: bool,
}

#[derive(Default)]
pub(crate) struct Throttle {
    records: Mutex<BTreeMap<IpAddr, Record>>,
}

impl Throttle {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Record>> {
        lock(&self.records)
    }

    /// Takes a turn for `count` guesses, `digest` being of all of them.
    pub(crate) fn turn(&self, ip: IpAddr, digest: &Digest, count: u32, now: Instant) -> Turn {
        let mut records = self.lock();
        if !records.contains_key(&ip) && records.len() >= ADDRESSES {
            make_room(&mut records, now);
        }
        let record = records.entry(ip).or_insert_with(|| Record {
            paid: now,
            known: VecDeque::new(),
            warned: false,
        });
        if record.known.contains(digest) {
            return Turn::KnownWrong;
        }
        if record.paid <= now {
            record.warned = false;
        }
        let paid = record.paid.max(now) + PAUSE * count;
        let wait = (paid - now).saturating_sub(PAUSE * FREE);
        if wait.is_zero() {
            record.paid = paid;
            return Turn::Now;
        }
        if !std::mem::replace(&mut record.warned, true) {
            tracing::warn!(address = %ip, "many wrong tokens from this address; further ones are slowed down");
        }
        if wait > LONGEST {
            return Turn::Refused(wait);
        }
        record.paid = paid;
        Turn::After(wait)
    }

    /// The token was right: the turn cost nothing.
    pub(crate) fn right(&self, ip: IpAddr, count: u32) {
        if let Some(record) = self.lock().get_mut(&ip)
            && let Some(paid) = record.paid.checked_sub(PAUSE * count)
        {
            record.paid = paid;
        }
    }

    pub(crate) fn wrong(&self, ip: IpAddr, digest: Digest) {
        if let Some(record) = self.lock().get_mut(&ip)
            && !record.known.contains(&digest)
        {
            if record.known.len() >= KNOWN {
                record.known.pop_front();
            }
            record.known.push_back(digest);
        }
    }
}

/// Makes room: those that have paid go, and if that is not enough the half that will have first. Many at once, because
/// looking through all of them for every new address would be work that strangers can cause.
fn make_room(records: &mut BTreeMap<IpAddr, Record>, now: Instant) {
    records.retain(|_, record| record.paid > now);
    if records.len() < ADDRESSES {
        return;
    }
    let mut times: Vec<Instant> = records.values().map(|record| record.paid).collect();
    let (_, middle, _) = times.select_nth_unstable(ADDRESSES / 2);
    let middle = *middle;
    records.retain(|_, record| record.paid > middle);
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn digest(n: u8) -> Digest {
        [n; 32]
    }

    #[test]
    fn guesses_are_spaced_and_nobody_is_locked_out() {
        let throttle = Throttle::default();
        let now = Instant::now();
        let guess = |n: u8, now| {
            let turn = throttle.turn(IP, &digest(n), 1, now);
            if matches!(turn, Turn::Now | Turn::After(_)) {
                throttle.wrong(IP, digest(n));
            }
            turn
        };
        for n in 0..10 {
            assert_eq!(guess(n, now), Turn::Now);
        }
        for n in 10..15 {
            let wait = Duration::from_secs(u64::from(n) - 9);
            assert_eq!(guess(n, now), Turn::After(wait));
        }
        assert_eq!(guess(15, now), Turn::Refused(Duration::from_secs(6)));
        assert_eq!(guess(14, now), Turn::KnownWrong, "no new guess");
        let other = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(throttle.turn(other, &digest(0), 1, now), Turn::Now);
        // The right one gets its turn, and gives it back.
        let later = now + Duration::from_secs(2);
        let turn = throttle.turn(IP, &digest(99), 1, later);
        assert_eq!(turn, Turn::After(Duration::from_secs(4)));
        throttle.right(IP, 1);
        assert_eq!(throttle.turn(IP, &digest(99), 1, later), turn);
        let much_later = now + Duration::from_mins(1);
        assert_eq!(throttle.turn(IP, &digest(98), 4, much_later), Turn::Now);
    }

    #[test]
    fn the_table_stays_small() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for n in 0..2 * ADDRESSES as u32 {
            let ip = IpAddr::from(n.to_be_bytes());
            assert_eq!(throttle.turn(ip, &digest(1), 1, now), Turn::Now);
        }
        assert!(throttle.lock().len() <= ADDRESSES);
        for n in 0..30 {
            let _ = throttle.turn(IP, &digest(n), 1, now);
            throttle.wrong(IP, digest(n));
        }
        assert!(throttle.lock()[&IP].known.len() <= KNOWN);
    }

    #[test]
    fn one_network_of_the_new_protocol_is_one_address() {
        let group = |text: &str| group(text.parse().unwrap()).to_string();
        assert_eq!(group("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(group("2001:db8:1:2::9"), group("2001:db8:1:2:3:4:5:6"));
        assert_ne!(group("2001:db8:1:3::9"), group("2001:db8:1:2:3:4:5:6"));
        assert_eq!(group("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(group("::1"), "::1");
    }
}
