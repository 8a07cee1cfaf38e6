//! The settings of a URL, one row for each.

use crate::options::{LateWrites, Provider, Timeouts};
use crate::srp;
use lunar_proto::chap::Algorithm;
use lunar_proto::duration::{self, NotationError};
use lunar_proto::nearest::nearest;
use lunar_proto::parameters::{AllowedDigests, Offer, TaskReporting};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The values of all settings, initially the defaults.
#[derive(Clone)]
pub struct UrlSettings {
    /// The keys to negotiate.
    pub offer: Offer,
    /// Whether CRC32C is preferred over no digest.
    pub crc32c_first: bool,
    /// The timeouts.
    pub timeouts: Timeouts,
    /// The maximum number of commands in flight.
    pub commands: u16,
    /// The RDMA provider.
    pub provider: Provider,
    /// The size of the socket buffers in bytes.
    pub window: Option<u32>,
    /// The ISID.
    pub isid: Option<[u8; 6]>,
    /// The halves of the SRP initiator port.
    pub initiator_ext: Option<u64>,
    pub initiator_guid: Option<u64>,
    /// The number of channels of an SRP session.
    pub channels: u16,
    /// The treatment of a write whose connection is lost.
    pub late_writes: LateWrites,
    /// CHAP algorithms, in order of preference.
    pub algorithms: Vec<Algorithm>,
    /// Names, secrets, and paths of secret files.
    pub texts: Texts,
}

/// Settings with text values.
#[derive(Clone, Default)]
pub struct Texts {
    /// The iSCSI name of this initiator.
    pub initiator: Option<String>,
    /// The file with the secret of this initiator.
    pub password_file: Option<String>,
    /// The user of the target, for mutual CHAP.
    pub target_user: Option<String>,
    /// The secret of the target.
    pub target_password: Option<String>,
    /// The file with the secret of the target.
    pub target_password_file: Option<String>,
}

/// The type of the value of a setting, and its field.
enum Takes {
    Flag(fn(&mut Offer) -> &mut bool),
    Bytes(fn(&mut Offer) -> &mut u32),
    Count(RangeInclusive<u16>, fn(&mut UrlSettings) -> &mut u16),
    Isid,
    Channels,
    /// A half of an SRP port name.
    Half(fn(&mut UrlSettings) -> &mut Option<u64>),
    Provider,
    Window,
    Late,
    Tries(fn(&mut Timeouts) -> &mut u32),
    /// The one value that this initiator supports.
    Only(&'static str),
    Digest(fn(&mut Offer) -> &mut AllowedDigests),
    Reporting,
    Algorithms,
    Time(fn(&mut Timeouts) -> &mut Duration),
    /// A time, or zero.
    TimeOrNone(fn(&mut Timeouts) -> &mut Duration),
    Text(fn(&mut Texts) -> &mut Option<String>),
    /// A secret text.
    Secret(fn(&mut Texts) -> &mut Option<String>),
}
use Takes::*;

/// One setting.
pub struct Row {
    /// The key.
    pub name: &'static str,
    takes: Takes,
}

const fn row(name: &'static str, takes: Takes) -> Row {
    Row { name, takes }
}

/// The maximum timeout: thirty days.
const LONGEST: Duration = Duration::from_secs(30 * 86400);
/// The minimum of timeouts that cannot be zero.
const SHORTEST: Duration = Duration::from_millis(1);
/// The range of data segment and burst lengths in bytes (RFC 7143 section 13).
const SIZES: RangeInclusive<u32> = 512..=0xff_ffff;

/// The range of socket buffer sizes in bytes.
const WINDOW: RangeInclusive<u32> = 4096..=1 << 30;

/// All settings.
pub static TABLE: &[Row] = &[
    row("target_user", Text(|t| &mut t.target_user)),
    row("target_password", Secret(|t| &mut t.target_password)),
    row("password_file", Text(|t| &mut t.password_file)),
    row("target_password_file", Text(|t| &mut t.target_password_file)),
    row("auth", Algorithms),
    row("initiator", Text(|t| &mut t.initiator)),
    row("isid", Isid),
    row("initiator_ext", Half(|s| &mut s.initiator_ext)),
    row("initiator_guid", Half(|s| &mut s.initiator_guid)),
    row("channels", Channels),
    row("window", Window),
    row("provider", Provider),
    row("header_digest", Digest(|o| &mut o.header_digest)),
    row("data_digest", Digest(|o| &mut o.data_digest)),
    row("initial_r2t", Flag(|o| &mut o.initial_r2t)),
    row("immediate_data", Flag(|o| &mut o.immediate_data)),
    row("max_recv_data_segment_length", Bytes(|o| &mut o.max_recv_data_segment_length)),
    row("max_burst_length", Bytes(|o| &mut o.max_burst_length)),
    row("first_burst_length", Bytes(|o| &mut o.first_burst_length)),
    row("max_outstanding_r2t", Count(1..=65535, |s| &mut s.offer.max_outstanding_r2t)),
    row("default_time2wait", Count(0..=3600, |s| &mut s.offer.default_time2wait)),
    row("default_time2retain", Count(0..=3600, |s| &mut s.offer.default_time2retain)),
    row("data_pdu_in_order", Flag(|o| &mut o.data_pdu_in_order)),
    row("data_sequence_in_order", Flag(|o| &mut o.data_sequence_in_order)),
    row("task_reporting", Reporting),
    row("max_connections", Only("1")),
    row("error_recovery_level", Only("0")),
    row("login_timeout", Time(|t| &mut t.login)),
    row("logout_timeout", Time(|t| &mut t.logout)),
    row("noop_interval", TimeOrNone(|t| &mut t.noop_interval)),
    row("noop_timeout", Time(|t| &mut t.noop)),
    row("command_timeout", Time(|t| &mut t.command)),
    row("abort_timeout", Time(|t| &mut t.abort)),
    row("lun_reset_timeout", Time(|t| &mut t.lun_reset)),
    row("target_reset_timeout", Time(|t| &mut t.target_reset)),
    row("recovery_timeout", Time(|t| &mut t.recovery)),
    row("fast_io_fail_timeout", Time(|t| &mut t.fast_io_fail)),
    row("transition_timeout", TimeOrNone(|t| t.transition.get_or_insert_default())),
    row("operation_timeout", Time(|t| &mut t.operation)),
    row("late_writes", Late),
    row("login_tries", Tries(|t| &mut t.login_tries)),
    row("commands", Count(1..=4096, |s| &mut s.commands)),
];

/// The reason why a setting does not accept a value.
#[derive(Debug)]
pub struct Refusal {
    /// The fault.
    pub what: String,
    /// The fix.
    pub hint: String,
}

impl From<String> for Refusal {
    fn from(what: String) -> Refusal {
        Refusal { what, hint: "docs/use.md lists all keys".into() }
    }
}

impl From<&str> for Refusal {
    fn from(what: &str) -> Refusal {
        what.to_owned().into()
    }
}

impl From<NotationError> for Refusal {
    fn from(unfit: NotationError) -> Refusal {
        Refusal { what: unfit.what, hint: unfit.hint }
    }
}

/// Finds the row of a key.
///
/// # Errors
/// A similar known key, if there is one.
pub fn find(key: &str) -> Result<&'static Row, Option<&'static str>> {
    let found = TABLE.iter().find(|row| row.name == key);
    found.ok_or_else(|| nearest(key, TABLE.iter().map(|row| row.name)))
}

/// The transports to which a setting applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// All transports. Accepted even where the setting has no effect.
    All,
    /// Transports with an iSCSI login: authentication.
    Iscsi,
    /// RDMA transports.
    Rdma,
    /// SRP only.
    Srp,
}

impl Row {
    /// The transports to which the setting applies.
    pub fn belongs(&self) -> Belongs {
        match self.takes {
            Half(_) | Channels => Belongs::Srp,
            Provider => Belongs::Rdma,
            Algorithms | Secret(_) => Belongs::Iscsi,
            Text(_) if self.name != "initiator" => Belongs::Iscsi,
            _ => Belongs::All,
        }
    }

    /// Whether the value is a time.
    #[cfg(test)]
    pub fn is_time(&self) -> bool {
        matches!(self.takes, Time(_) | TimeOrNone(_))
    }

    /// Whether the value must not be shown.
    pub fn is_secret(&self) -> bool {
        matches!(self.takes, Secret(_))
    }

    /// Parses a value and stores it.
    ///
    /// # Errors
    /// The accepted values.
    pub fn set(&self, settings: &mut UrlSettings, value: &str) -> Result<(), Refusal> {
        match &self.takes {
            Flag(field) => *field(&mut settings.offer) = flag(value).ok_or("the value must be yes or no")?,
            Bytes(field) => *field(&mut settings.offer) = size(value, &SIZES)?,
            Count(range, field) => *field(settings) = number(value, range)?,
            Window => settings.window = Some(size(value, &WINDOW)?),
            Provider => {
                let found = Provider::NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(value));
                settings.provider = found.ok_or("the value must be iwarp or verbs")?.1;
            }
            Half(field) => {
                *field(settings) = Some(srp::half(value).ok_or("the value must have 16 hexadecimal digits")?);
            }
            Channels => settings.channels = number(value, &(1..=64))?,
            Late => {
                let found = LateWrites::NAMES.iter().find(|(name, _)| *name == value);
                settings.late_writes = found.ok_or("the value must be wait or risk")?.1;
            }
            Isid => settings.isid = Some(isid(value).ok_or("the value must have 12 hexadecimal digits")?),
            Tries(field) => *field(&mut settings.timeouts) = number(value, &(1..=1_000_000))?,
            Only(one) if value == *one => {}
            Only(one) => return Err(format!("the value must be {one}").into()),
            Digest(field) => {
                let (digests, crc32c_first) =
                    digests(value).ok_or("the value must be none, crc32c, or both with a comma")?;
                *field(&mut settings.offer) = digests;
                settings.crc32c_first |= crc32c_first;
            }
            Reporting => {
                // This initiator does not implement FastAbort (RFC 7143 section 4.2.3.4).
                let mut names = TaskReporting::NAMES.iter().filter(|row| row.1 < TaskReporting::FastAbort);
                let found = names.find(|(name, _)| name.eq_ignore_ascii_case(value));
                settings.offer.task_reporting = found.ok_or("the value must be RFC3720 or ResponseFence")?.1;
            }
            Algorithms => {
                settings.algorithms = algorithms(value)
                    .ok_or("the value must be md5, sha1, sha-256, sha3-256, or several with commas")?;
            }
            Time(field) => *field(&mut settings.timeouts) = duration::within(value, SHORTEST..=LONGEST)?,
            TimeOrNone(field) => {
                *field(&mut settings.timeouts) = duration::within(value, Duration::ZERO..=LONGEST)?;
            }
            Text(field) | Secret(field) if !value.is_empty() => {
                *field(&mut settings.texts) = Some(value.to_owned());
            }
            Text(_) | Secret(_) => return Err("the value is empty".into()),
        }
        Ok(())
    }
}

/// Parses an ISID of six bytes (RFC 7143 section 11.12.5).
fn isid(value: &str) -> Option<[u8; 6]> {
    crate::nexus::parse_isid(value.strip_prefix("0x").unwrap_or(value))
}

fn flag(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "yes" | "true" | "1" | "on" => Some(true),
        "no" | "false" | "0" | "off" => Some(false),
        _ => None,
    }
}

/// A size in bytes, or with a unit.
fn size(value: &str, range: &RangeInclusive<u32>) -> Result<u32, String> {
    let read = lunar_proto::size::parse(value).ok().and_then(|bytes| bytes.try_into().ok());
    let refused = || format!("the value must be a size from {} to {} bytes", range.start(), range.end());
    read.filter(|bytes| range.contains(bytes)).ok_or_else(refused)
}

fn number<T>(value: &str, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let read = value.parse().ok().filter(|n| range.contains(n) && !value.starts_with('+'));
    read.ok_or_else(|| format!("the value must be a number from {} to {}", range.start(), range.end()))
}

/// Parses digests in the format of libiscsi. Also returns whether CRC32C is preferred.
fn digests(value: &str) -> Option<(AllowedDigests, bool)> {
    match value.to_ascii_lowercase().as_str() {
        "none" => Some((AllowedDigests { none: true, crc32c: false }, false)),
        "crc32c" => Some((AllowedDigests { none: false, crc32c: true }, true)),
        "none,crc32c" => Some((AllowedDigests { none: true, crc32c: true }, false)),
        "crc32c,none" => Some((AllowedDigests { none: true, crc32c: true }, true)),
        _ => None,
    }
}

fn algorithms(value: &str) -> Option<Vec<Algorithm>> {
    let one = |name: &str| match name.to_ascii_lowercase().as_str() {
        "md5" => Some(Algorithm::Md5),
        "sha1" | "sha-1" => Some(Algorithm::Sha1),
        "sha-256" | "sha256" => Some(Algorithm::Sha256),
        "sha3-256" => Some(Algorithm::Sha3),
        _ => None,
    };
    value.split(',').map(one).collect()
}
