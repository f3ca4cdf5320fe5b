//! Which units of a model are on its device when not all of them fit, and which leave when it must shrink. Pure.

use std::cmp::Ordering;

use crate::Unit;
use crate::amount::clamp;

/// Where the units of a model go. Positions in the list that was given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Split {
    /// In the order they are brought there: largest first.
    pub resident: Vec<usize>,
    pub offloaded: Vec<usize>,
    /// Bytes of the resident ones.
    pub used: u64,
    /// Kept free for streaming the others.
    pub buffer: u64,
    /// The limit is above all of the model: nothing was weighed.
    pub full: bool,
}

/// What leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shrunk {
    /// In the order they leave: cheapest first.
    pub units: Vec<usize>,
    pub freed: u64,
    /// The buffer afterwards; never smaller than before.
    pub buffer: u64,
}

/// The cheapest to stream first; equal ones by size, then name, so that there is one order.
fn by_cost(a: &Unit, b: &Unit) -> Ordering {
    (a.cost, a.bytes)
        .cmp(&(b.cost, b.bytes))
        .then_with(|| a.name.cmp(&b.name))
}

/// The order in which residents are moved.
fn larger_first(a: &Unit, b: &Unit) -> Ordering {
    b.bytes.cmp(&a.bytes).then_with(|| b.name.cmp(&a.name))
}

/// The order of a placement pass: positions, costliest first. It changes only when units do, so it may be kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Order {
    places: Vec<usize>,
    /// Whether it is also the order of sizes, as without patches.
    sized: bool,
}

impl Order {
    pub fn of(units: &[Unit]) -> Self {
        let mut places: Vec<usize> = (0..units.len()).collect();
        places.sort_by(|a, b| by_cost(&units[*b], &units[*a]).then(a.cmp(b)));
        let sized = places.is_sorted_by(|a, b| larger_first(&units[*a], &units[*b]).is_le());
        Self { places, sized }
    }

    /// Of other units every place in it would be wrong, or none.
    fn is_of(&self, units: &[Unit]) -> bool {
        self.places.len() == units.len()
    }
}

/// One placement pass: residents and streaming buffer together stay below `limit` (none: no limit).
///
/// `streams`: how many further units are fetched while one is used; their room is part of the buffer.
pub fn split(units: &[Unit], limit: Option<u64>, streams: usize) -> Split {
    split_in(units, &Order::of(units), limit, streams)
}

/// As [`split`], for units whose order is known: linear.
pub fn split_in(units: &[Unit], order: &Order, limit: Option<u64>, streams: usize) -> Split {
    if !order.is_of(units) {
        return split(units, limit, streams);
    }
    let sort = |list: &mut [usize]| {
        if !order.sized {
            list.sort_by(|a, b| larger_first(&units[*a], &units[*b]));
        }
    };
    let order = &order.places[..];
    let total: u128 = units.iter().map(|unit| u128::from(unit.bytes)).sum();
    let limit = match limit {
        Some(limit) if u128::from(limit) <= total => u128::from(limit),
        _ => {
            let mut resident = order.to_vec();
            sort(&mut resident);
            return Split {
                resident,
                used: clamp(total),
                full: true,
                ..Split::default()
            };
        }
    };
    let mut window = Ahead::new(units, order, streams);
    // Room needed while the unit at this place of the order is streamed, and the next ones behind it.
    let needs: Vec<u128> = (0..order.len())
        .map(|place| u128::from(units[order[place]].cost) + window.next())
        .collect();
    let (mut used, mut buffer) = (0u128, 0u128);
    let mut taken = Vec::new();
    let mut left = Vec::new();
    for (place, need) in needs.iter().enumerate() {
        let need = buffer.max(*need);
        let bytes = u128::from(units[order[place]].bytes);
        if used + bytes + need < limit {
            used += bytes;
            taken.push(place);
        } else {
            // Also one that cannot be streamed stays where it is: it would be over the limit.
            buffer = need;
            left.push(place);
        }
    }
    // Costs that differ much from sizes (patched units) can make the buffer grow after smaller ones were let in, which
    // would end above the limit: the last ones go again.
    while used + buffer >= limit {
        let Some(place) = taken.pop() else { break };
        used -= u128::from(units[order[place]].bytes);
        buffer = buffer.max(needs[place]);
        left.push(place);
    }
    left.sort_unstable();
    let mut resident: Vec<usize> = taken.iter().map(|place| order[*place]).collect();
    sort(&mut resident);
    Split {
        resident,
        offloaded: left.iter().map(|place| order[*place]).collect(),
        used: clamp(used),
        buffer: clamp(buffer),
        full: false,
    }
}

/// Sizes of the next few units in the order, one place after the other, in one walk.
struct Ahead<'a> {
    units: &'a [Unit],
    order: &'a [usize],
    /// The place it is asked for next, and the place after the last one in the sum.
    place: usize,
    end: usize,
    streams: usize,
    sum: u128,
}

impl<'a> Ahead<'a> {
    fn new(units: &'a [Unit], order: &'a [usize], streams: usize) -> Self {
        let end = streams.min(order.len());
        let sum = order[..end]
            .iter()
            .map(|i| u128::from(units[*i].bytes))
            .sum();
        Self {
            units,
            order,
            place: 0,
            end,
            streams,
            sum,
        }
    }

    fn bytes(&self, place: usize) -> u128 {
        u128::from(self.units[self.order[place]].bytes)
    }

    /// Σ sizes of `streams` units behind this place.
    fn next(&mut self) -> u128 {
        if self.streams == 0 || self.place >= self.order.len() {
            return 0;
        }
        self.sum -= self.bytes(self.place);
        self.place += 1;
        if self.end < self.order.len() {
            self.sum += self.bytes(self.end);
            self.end += 1;
        }
        self.sum
    }
}

/// What leaves so that more than `to_free` bytes come free, what streaming them needs counted against it; everything
/// resident if that is not enough. `buffer` is the one in force. A patched unit that cannot be streamed stays.
///
/// As in the reference `to_free` itself is not enough, so 0 moves one unit.
pub fn shrink(
    units: &[Unit],
    resident: &[usize],
    to_free: u64,
    buffer: u64,
    streams: usize,
) -> Shrunk {
    shrink_in(units, &Order::of(units), resident, to_free, buffer, streams)
}

/// As [`shrink`], for units whose order is known: linear.
pub fn shrink_in(
    units: &[Unit],
    order: &Order,
    resident: &[usize],
    to_free: u64,
    buffer: u64,
    streams: usize,
) -> Shrunk {
    if !order.is_of(units) {
        return shrink(units, resident, to_free, buffer, streams);
    }
    let mut movable = vec![false; units.len()];
    for place in resident {
        if let Some(unit) = units.get(*place) {
            movable[*place] = unit.castable || !unit.own;
        }
    }
    let smallest = order.places.last().map_or(0, |place| units[*place].bytes);
    let before = u128::from(buffer);
    let mut after = before;
    let mut freed: u128 = 0;
    // What is fetched ahead is the `streams` units that left before, and until there are so many, an even part of the
    // buffer each (or the smallest unit, if that is less).
    let assumed = |count: u128| {
        let even = (before * count).div_ceil(streams as u128 + 1);
        even.min(u128::from(smallest).saturating_mul(count))
    };
    let mut recent: u128 = 0;
    let mut gone: Vec<usize> = Vec::new();
    for unit in order
        .places
        .iter()
        .rev()
        .copied()
        .filter(|place| movable[*place])
    {
        if freed > u128::from(to_free) + (after - before) {
            break;
        }
        let missing = streams.saturating_sub(gone.len());
        let need = u128::from(units[unit].cost) + recent + assumed(missing as u128);
        let bytes = u128::from(units[unit].bytes);
        freed += bytes;
        after = after.max(need);
        if streams > 0 {
            recent += bytes;
            if gone.len() >= streams {
                recent -= u128::from(units[gone[gone.len() - streams]].bytes);
            }
        }
        gone.push(unit);
    }
    Shrunk {
        units: gone,
        freed: clamp(freed),
        buffer: clamp(after),
    }
}
