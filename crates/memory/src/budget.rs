//! How many bytes of a model may be on its device: states, reserves and the budget of one load. Pure.

use crate::amount::{GIB, MIB, clamp, gib, times};

/// How much the models of this process may use of an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum VramState {
    /// No accelerator: models compute where they are.
    Disabled,
    /// Nothing that can be streamed stays on the device.
    NoVram,
    /// As normal, and text encoders compute in main memory.
    LowVram,
    #[default]
    NormalVram,
    /// No budget, and models stay on the device.
    HighVram,
    /// The device's memory is the main memory.
    Shared,
}

impl VramState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "DISABLED",
            Self::NoVram => "NO_VRAM",
            Self::LowVram => "LOW_VRAM",
            Self::NormalVram => "NORMAL_VRAM",
            Self::HighVram => "HIGH_VRAM",
            Self::Shared => "SHARED",
        }
    }

    /// The state that counts for a model which computes there: in main memory there is nothing to budget.
    pub fn on(self, main_memory: bool) -> Self {
        if main_memory { Self::Disabled } else { self }
    }

    /// Whether loads get a share of what is free.
    pub fn budgeted(self) -> bool {
        matches!(self, Self::LowVram | Self::NormalVram)
    }
}

/// What the system takes of a device's memory beside us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveRule {
    pub base: u64,
    /// A device with more than this ...
    pub large_over: u64,
    /// ... has so much more reserved.
    pub large_plus: u64,
}

impl ReserveRule {
    pub const OTHER: Self = Self {
        base: 400 * MIB,
        large_over: u64::MAX,
        large_plus: 0,
    };
    /// The desktop there takes more, most of all on large cards.
    pub const WINDOWS: Self = Self {
        base: 600 * MIB,
        large_over: 15 * GIB,
        large_plus: 100 * MIB,
    };

    /// Of the system this was built for.
    pub const fn here() -> Self {
        if cfg!(windows) {
            Self::WINDOWS
        } else {
            Self::OTHER
        }
    }

    pub fn extra(self, device_total: u64) -> u64 {
        if device_total > self.large_over {
            self.base.saturating_add(self.large_plus)
        } else {
            self.base
        }
    }
}

/// What is not for weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reserves {
    /// For the system and other programs.
    pub extra: u64,
    /// For computing, at least.
    pub inference: u64,
    /// This part of what is free may hold weights although it is less than computing asks for.
    pub ratio: f64,
}

/// 0.8 GiB.
const INFERENCE: u64 = 4 * GIB / 5;

impl Default for Reserves {
    fn default() -> Self {
        Self::new(ReserveRule::OTHER, 0, true)
    }
}

impl Reserves {
    /// `nvidia`: also simulated devices. Weights stream well enough there that no part is held for them.
    pub fn new(rule: ReserveRule, device_total: u64, nvidia: bool) -> Self {
        Self {
            extra: rule.extra(device_total),
            inference: INFERENCE,
            ratio: if nvidia { 0.0 } else { 0.4 },
        }
    }

    /// `--reserve-vram`: takes the place of the system's share. None for what is no amount.
    #[must_use]
    pub fn with_reserve(self, gigabytes: f64) -> Option<Self> {
        Some(Self {
            extra: gib(gigabytes)?,
            ..self
        })
    }

    /// The minimum inference memory.
    pub fn minimum(&self) -> u64 {
        self.inference.saturating_add(self.extra)
    }

    /// What weights may take at most, for the choice of a number format.
    pub fn maximum_weights(&self, device_total: u64) -> u64 {
        let most = clamp(u128::from(device_total) * 88 / 100);
        most.saturating_sub(self.minimum())
    }

    /// What a load request wants free beside the weights.
    pub fn demand(&self, required: u64, minimum: Option<u64>) -> Demand {
        let expected = self.minimum().max(required.saturating_add(self.extra));
        let floor = match minimum {
            Some(minimum) => self.minimum().max(minimum.saturating_add(self.extra)),
            None => expected,
        };
        Demand { expected, floor }
    }
}

/// Free bytes a load request wants for computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// To compute as asked.
    pub expected: u64,
    /// To compute at all.
    pub floor: u64,
}

impl Demand {
    /// What must be free on a device before `bytes` of weights go there.
    pub fn with_weights(&self, bytes: u64) -> u64 {
        headroom(bytes).saturating_add(self.expected)
    }
}

/// Bytes still to load, with the tenth that loading wants beside them.
pub fn headroom(bytes: u64) -> u64 {
    clamp((u128::from(bytes) * 11).div_ceil(10))
}

/// How many bytes more a model may have on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    Unlimited,
    /// Negative: so many must leave. 0 is the tenth of a byte of the reference: nothing more fits.
    Bytes(i64),
}

impl Budget {
    /// The limit of a placement pass (see [`crate::split`]) for a model with `loaded` bytes on the device.
    ///
    /// A pass keeps strictly below its limit. The tenth of a byte lets it reach `loaded`, so it counts as one byte.
    pub fn limit(self, loaded: u64) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Bytes(0) => Some(loaded.saturating_add(1)),
            Self::Bytes(bytes) => Some(loaded.saturating_add_signed(bytes)),
        }
    }

    /// Bytes that must leave first.
    pub fn excess(self) -> u64 {
        match self {
            Self::Bytes(bytes) if bytes < 0 => bytes.unsigned_abs(),
            _ => 0,
        }
    }
}

/// The budget of one load. `minimum` is [`Demand::floor`]; `full` is set where the whole model is asked for or the device
/// has no budgeted loads.
pub fn budget(
    state: VramState,
    free: u64,
    loaded: u64,
    minimum: u64,
    reserves: &Reserves,
    full: bool,
) -> Budget {
    if state == VramState::NoVram {
        return Budget::Bytes(0);
    }
    if full || !state.budgeted() {
        return Budget::Unlimited;
    }
    // 65 bits: what could be free if the model were not there.
    let total = i128::from(free) + i128::from(loaded);
    let after_minimum = total - i128::from(minimum);
    let share = times(clamp(total.unsigned_abs()), reserves.ratio);
    let share = i128::try_from(share)
        .unwrap_or(i128::MAX)
        .min(total - i128::from(reserves.minimum()));
    let bytes = after_minimum.max(share).max(0) - i128::from(loaded);
    Budget::Bytes(i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX }))
}
