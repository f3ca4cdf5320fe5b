//! The text that says how many bytes of a model go to which device: `cuda:0,2.5g;cuda:1,25%...`. Pure.
//!
//! ```text
//! list   = item *(";" item) [";"]
//! item   = device "," amount
//! amount = "*" | number [unit] ["*"] | number "%"
//! unit   = g | gb | gib | m | mb | mib | k | kb | kib | b      any case
//! ```
//!
//! Amounts are bytes (with a unit), shares of the model (`%`) or parts of the device's memory (plain); one text has one of
//! these, and a plain number is what the others are. `*` is the device that takes the rest, without one it is `cpu`.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::amount::{Decimal, GIB, KIB, MIB, clamp};

/// A device and how much memory it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTotal {
    pub name: String,
    pub total: u64,
}

/// What one device is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    /// In percent, related to the sum of all (or to 100, where there is a rest).
    Percent(Decimal),
    /// Of the memory of the device.
    Fraction(Decimal),
    /// What no other device takes.
    Rest,
}

/// What a text asks for, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expert {
    /// Each device once, by the names that were given.
    pub items: Vec<(String, Amount)>,
    /// The device with `*`.
    pub wildcard: Option<String>,
    pub warnings: Vec<Warning>,
}

/// What is odd but has a meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// `wildcard_amount_ignored`, `second_wildcard`, `above_device`.
    pub code: &'static str,
    /// Where it is in the text: bytes from its start.
    pub position: usize,
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExpertCode {
    UnknownDevice,
    BadAmount,
    ZeroRatio,
    BadItem,
    MixedModes,
    DuplicateDevice,
}

impl ExpertCode {
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownDevice => "unknown_device",
            Self::BadAmount => "bad_amount",
            Self::ZeroRatio => "zero_ratio",
            Self::BadItem => "bad_item",
            Self::MixedModes => "mixed_modes",
            Self::DuplicateDevice => "duplicate_device",
        }
    }
}

impl fmt::Display for ExpertCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One problem of a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} at {position}: {message}")]
pub struct ExpertError {
    pub code: ExpertCode,
    /// Where it is in the text: bytes from its start.
    pub position: usize,
    pub message: String,
}

/// More problems than this are not listed: the text is something else.
const MOST_ERRORS: usize = 100;

/// The largest share that is accepted, in percent. A million is absurd already; the limit keeps every product exact.
const MOST_PERCENT: u64 = 1_000_000_000;

/// Reads a text for these devices. None: there is nothing in it. All problems are found, in order of their places.
pub fn parse_expert(
    text: &str,
    devices: &[DeviceTotal],
) -> Result<Option<Expert>, Vec<ExpertError>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let mut reader = Reader {
        devices,
        seen: vec![false; devices.len()],
        items: Vec::new(),
        errors: Vec::new(),
    };
    let mut start = 0;
    for part in text.split(';') {
        let last = start + part.len() == text.len();
        // A `;` may close the list, but not stand alone.
        if !(last && part.trim().is_empty() && start > 0) {
            reader.item(part, start);
        }
        if reader.errors.len() >= MOST_ERRORS {
            reader.errors.truncate(MOST_ERRORS);
            return Err(reader.errors);
        }
        start += part.len() + 1;
    }
    reader.finish().map(Some)
}

/// As it is written, before the mode is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    Plain(Decimal),
    Bytes(u64),
    Percent(Decimal),
    Star,
}

struct Item {
    /// None where the name is wrong: its amount still says which mode was meant.
    device: Option<usize>,
    amount: Written,
    /// `5gb*`: also the rest, the amount does not count.
    starred: bool,
    /// Of the amount.
    position: usize,
}

struct Reader<'a> {
    devices: &'a [DeviceTotal],
    /// By device: whether the text named it before.
    seen: Vec<bool>,
    items: Vec<Item>,
    errors: Vec<ExpertError>,
}

impl Reader<'_> {
    fn error(&mut self, code: ExpertCode, position: usize, message: String) {
        self.errors.push(ExpertError {
            code,
            position,
            message,
        });
    }

    fn item(&mut self, part: &str, start: usize) {
        let lead = start + (part.len() - part.trim_start().len());
        let Some((name, amount)) = part.split_once(',') else {
            let what = if part.trim().is_empty() {
                "an item is empty".to_owned()
            } else {
                format!("{} is not a device and an amount", quote(part.trim()))
            };
            let message = format!(
                "{what}; each item is DEVICE,AMOUNT as in {}",
                self.example()
            );
            return self.error(ExpertCode::BadItem, lead, message);
        };
        if let Some((first, _)) = amount.split_once(',') {
            let message = format!(
                "{} has more than one comma; items are separated by \";\" as in {}",
                quote(part.trim()),
                self.example()
            );
            let second = start + name.len() + 1 + first.len();
            return self.error(ExpertCode::BadItem, second, message);
        }
        let device = self.device(name.trim(), lead);
        let amount_start = start + name.len() + 1 + (amount.len() - amount.trim_start().len());
        match read_amount(amount.trim()) {
            Ok((amount, starred)) => self.items.push(Item {
                device,
                amount,
                starred,
                position: amount_start,
            }),
            Err(problem) => {
                let message = format!(
                    "{} is not an amount: {problem}; right are 2.5g, 500mb, 25%, 0.5 and *",
                    quote(amount.trim())
                );
                self.error(ExpertCode::BadAmount, amount_start, message);
            }
        }
    }

    fn device(&mut self, name: &str, position: usize) -> Option<usize> {
        if name.is_empty() {
            let message = format!("the name of a device is missing, as in {}", self.example());
            self.error(ExpertCode::BadItem, position, message);
            return None;
        }
        let found = (self.devices.iter().position(|device| device.name == name)).or_else(|| {
            self.devices
                .iter()
                .position(|device| device.name.eq_ignore_ascii_case(name))
        });
        let Some(found) = found else {
            let message = format!(
                "unknown device {}; {}",
                quote(name),
                list_devices(self.devices)
            );
            self.error(ExpertCode::UnknownDevice, position, message);
            return None;
        };
        if std::mem::replace(&mut self.seen[found], true) {
            let message = format!("{} is named twice; each device has one amount", quote(name));
            self.error(ExpertCode::DuplicateDevice, position, message);
            return None;
        }
        Some(found)
    }

    /// A right text for the devices that are here.
    fn example(&self) -> String {
        let first = ordered(self.devices)
            .into_iter()
            .find(|device| device.name != "cpu");
        format!(
            "{},2.5g;cpu,*",
            first.map_or("cuda:0", |device| &device.name)
        )
    }

    fn finish(mut self) -> Result<Expert, Vec<ExpertError>> {
        let first = |percent: bool| {
            self.items.iter().find(|item| match item.amount {
                Written::Bytes(_) => !percent,
                Written::Percent(_) => percent,
                Written::Plain(_) | Written::Star => false,
            })
        };
        let (bytes, percent) = (
            first(false).map(|i| i.position),
            first(true).map(|i| i.position),
        );
        if let (Some(bytes), Some(percent)) = (bytes, percent) {
            let message = "sizes and percentages cannot be mixed: write all amounts with a unit (2g) or all with % (50%)";
            self.error(
                ExpertCode::MixedModes,
                bytes.max(percent),
                message.to_owned(),
            );
        }
        let mut expert = Expert::default();
        let mut winner = None;
        for (number, item) in self.items.iter().enumerate() {
            if item.starred || item.amount == Written::Star {
                winner = Some(number);
            }
        }
        let mut errors = Vec::new();
        let mut zero = percent;
        for (number, item) in self.items.iter().enumerate() {
            let Some(device) = item.device.map(|i| &self.devices[i]) else {
                continue;
            };
            let star = item.starred || item.amount == Written::Star;
            let amount = if star {
                if item.starred {
                    expert.warnings.push(Warning {
                        code: "wildcard_amount_ignored",
                        position: item.position,
                        message: format!(
                            "{} takes the rest (*), so its amount does not count",
                            device.name
                        ),
                    });
                }
                if winner == Some(number) {
                    zero = None;
                    Amount::Rest
                } else {
                    expert.warnings.push(Warning {
                        code: "second_wildcard",
                        position: item.position,
                        message: format!(
                            "several devices have *: the last one takes the rest, {} nothing",
                            device.name
                        ),
                    });
                    Amount::Bytes(0)
                }
            } else {
                match resolve(item.amount, bytes.is_some(), percent.is_some()) {
                    Ok(amount) => amount,
                    Err(message) => {
                        errors.push((item.position, message));
                        continue;
                    }
                }
            };
            match amount {
                Amount::Percent(share) if share.billionths() > 0 => zero = None,
                Amount::Fraction(part) if part > Decimal::whole(1) => expert.warnings.push(Warning {
                    code: "above_device",
                    position: item.position,
                    message: format!(
                        "a plain number is a part of the memory of {}, and 1 is all of it; for GiB write g behind it",
                        device.name
                    ),
                }),
                _ => {}
            }
            expert.items.push((device.name.clone(), amount));
        }
        expert.wildcard = winner
            .and_then(|number| self.items[number].device)
            .map(|device| self.devices[device].name.clone());
        for (position, message) in errors {
            self.error(ExpertCode::BadAmount, position, message);
        }
        // With other problems the sum is not the one that was meant.
        if let Some(position) = zero.filter(|_| self.errors.is_empty()) {
            let message = "all percentages are 0: at least one device must take something, or the rest with *";
            self.error(ExpertCode::ZeroRatio, position, message.to_owned());
        }
        if self.errors.is_empty() {
            return Ok(expert);
        }
        self.errors.sort_by_key(|error| error.position);
        Err(self.errors)
    }
}

/// A plain number is what the others are.
fn resolve(amount: Written, bytes: bool, percent: bool) -> Result<Amount, String> {
    Ok(match amount {
        Written::Bytes(bytes) => Amount::Bytes(bytes),
        Written::Star => Amount::Rest,
        Written::Plain(number) if bytes => {
            let bytes =
                u64::try_from(number.of(1)).map_err(|_| "it is more than any memory".to_owned())?;
            Amount::Bytes(bytes)
        }
        Written::Plain(number) if !percent => Amount::Fraction(number),
        Written::Percent(number) | Written::Plain(number) => {
            if number > Decimal::whole(MOST_PERCENT) {
                return Err("the percentage is absurd; percentages need not sum up to 100, but write smaller ones".into());
            }
            Amount::Percent(number)
        }
    })
}

/// An amount, and whether a `*` follows it. The error says what is wrong with it.
fn read_amount(text: &str) -> Result<(Written, bool), &'static str> {
    if text.is_empty() {
        return Err("it is missing");
    }
    if text == "*" {
        return Ok((Written::Star, false));
    }
    let number_end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.is_empty() {
        return Err(match rest.as_bytes()[0] {
            b'-' => "it cannot be negative",
            b'*' => "nothing may follow the *",
            _ => "it must start with a number",
        });
    }
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err("the number is malformed");
    }
    let number = Decimal::parse(whole, fraction).ok_or("it is more than any memory")?;
    let rest = rest.trim_start();
    if rest == "%" {
        return Ok((Written::Percent(number), false));
    }
    let (unit, starred) = match rest.strip_suffix('*') {
        Some(unit) => (unit.trim_end(), true),
        None => (rest, false),
    };
    let size = match unit.to_ascii_lowercase().as_str() {
        "" => return Ok((Written::Plain(number), starred)),
        "g" | "gb" | "gib" => GIB,
        "m" | "mb" | "mib" => MIB,
        "k" | "kb" | "kib" => KIB,
        "b" => 1,
        "%" => return Err("a percentage cannot have a *"),
        _ => return Err("the unit is unknown (g, m, k, b or %)"),
    };
    let bytes = u64::try_from(number.of(size)).map_err(|_| "it is more than any memory")?;
    Ok((Written::Bytes(bytes), starred))
}

/// A piece of the text in a message: short, and nothing that would break a line or a terminal.
fn quote(text: &str) -> String {
    const MOST: usize = 40;
    if text.chars().count() <= MOST {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(MOST).collect();
    format!("{:?}", format!("{start}..."))
}

fn list_devices(devices: &[DeviceTotal]) -> String {
    let names: Vec<&str> = ordered(devices)
        .iter()
        .map(|device| &*device.name)
        .collect();
    if names.is_empty() {
        "there are no devices".to_owned()
    } else {
        format!("the devices are {}", names.join(", "))
    }
}

/// Each device once, in the order of [`device_order`]: the list may be in any order.
pub(crate) fn ordered(devices: &[DeviceTotal]) -> Vec<&DeviceTotal> {
    let mut list: Vec<&DeviceTotal> = devices.iter().collect();
    // Of two with one name the larger, so that the order given does not matter.
    list.sort_by(|a, b| device_order(&a.name, &b.name).then(b.total.cmp(&a.total)));
    list.dedup_by(|a, b| a.name == b.name);
    list
}

/// By kind, then by number (`cuda:2` before `cuda:10`), `cpu` last.
pub fn device_order(a: &str, b: &str) -> Ordering {
    fn key(name: &str) -> (bool, &str, bool, usize, &str) {
        let (kind, index) = name.split_once(':').unwrap_or((name, ""));
        if index.bytes().all(|byte| byte.is_ascii_digit()) {
            // Without leading zeros the longer number is the larger one.
            let digits = index.trim_start_matches('0');
            (name == "cpu", kind, false, digits.len(), digits)
        } else {
            (false, kind, true, 0, index)
        }
    }
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

/// Bytes for every item of `expert` of a model with `total` bytes, and what is left for the device that takes the rest.
pub(crate) fn quotas(
    expert: &Expert,
    total: u64,
    size_of: impl Fn(&str) -> u64,
) -> (Vec<u64>, u64) {
    let shares: u128 = (expert.items.iter())
        .map(|(_, amount)| match amount {
            Amount::Percent(share) => share.billionths(),
            _ => 0,
        })
        .fold(0, u128::saturating_add);
    let hundred = Decimal::whole(100).billionths();
    let whole = if expert.wildcard.is_some() {
        shares.max(hundred)
    } else {
        shares
    };
    let mut left = total;
    let mut last_share = None;
    let mut quotas: Vec<u64> = Vec::with_capacity(expert.items.len());
    for (number, (device, amount)) in expert.items.iter().enumerate() {
        let quota = match amount {
            Amount::Bytes(bytes) => (*bytes).min(left),
            Amount::Percent(share) => {
                if share.billionths() > 0 {
                    last_share = Some(number);
                }
                // A share of at most 60 bits times 64 bits.
                let part = u128::from(total).saturating_mul(share.billionths());
                clamp(part.checked_div(whole).unwrap_or(0))
            }
            Amount::Fraction(part) => clamp(part.of(size_of(device))),
            Amount::Rest => 0,
        };
        left = left.saturating_sub(quota);
        quotas.push(quota);
    }
    // Shares of everything are everything: the bytes that rounding left go to the last of them.
    if let (Some(last), true) = (last_share, shares == whole) {
        quotas[last] = quotas[last].saturating_add(left);
        left = 0;
    }
    (quotas, left)
}
