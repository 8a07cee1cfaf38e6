//! The output lines of disktest v1.1.12, and their arithmetic.

use crate::clock;
use lunar_bench::outcome::IoCounts;

/// The emulated version.
pub const VERSION: &str = "v1.1.12";
/// 2^20 bytes, which disktest calls MB.
const MIB: f64 = (1u64 << 20) as f64;

/// The prefix of lines.
#[derive(Clone, Debug)]
pub struct LinePrefix {
    /// The process, or the thread if several devices are tested at once.
    pub pid: u32,
    /// The device.
    pub device: String,
    /// Omit the prefix (-Q).
    pub is_bare: bool,
    /// Omit INFO lines (-q).
    pub is_quiet: bool,
}

impl LinePrefix {
    /// A line; None if it is omitted.
    pub fn line(&self, level: &str, message: &str) -> Option<String> {
        if self.is_quiet && level == "INFO" {
            return None;
        }
        if self.is_bare {
            return Some(message.into());
        }
        Some(self.line_text(level, message))
    }

    fn line_text(&self, level: &str, message: &str) -> String {
        let LinePrefix { pid, device, .. } = self;
        format!("| {} | {level:5} | {pid} | {VERSION} | {device} | {message}", clock::stamp())
    }
}

/// The options of -P.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportOptions {
    /// T: throughput.
    pub throughput: bool,
    /// X: transfers.
    pub transfers: bool,
    /// R: run time.
    pub times: bool,
    /// P: one machine-readable line instead.
    pub performance: bool,
}

/// The statistics of a pass or of the test.
#[derive(Clone, Copy, Debug)]
pub struct PassStats {
    /// Commands and bytes.
    pub share: IoCounts,
    /// Seconds of reading.
    pub read_s: f64,
    /// Seconds of writing.
    pub write_s: f64,
    /// Total seconds.
    pub overall_s: f64,
    /// Whether it reads, and whether it writes.
    pub directions: (bool, bool),
    /// Whether these are the totals of all passes.
    pub is_total: bool,
}

/// `throughput: ...` with rates in both units.
fn throughput(bytes: u64, transfers: u64, seconds: f64) -> String {
    let per_s = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let rate = per_s(bytes);
    format!("throughput: {rate:.1}B/s ({:.2}MB/s), IOPS {:.1}/s.", rate / MIB, per_s(transfers))
}

/// The STAT line of a session with one direction: `Read` or `Write`.
pub fn stat(device: String, direction: &str, share: &IoCounts, seconds: f64) -> String {
    let head = LinePrefix { pid: std::process::id(), device, is_bare: false, is_quiet: false };
    let (bytes, transfers) = (share.read_bytes + share.write_bytes, share.read_ios + share.write_ios);
    head.line_text("STAT", &format!("{direction} {}", throughput(bytes, transfers, seconds)))
}

/// `75 seconds (0h1m15s)`: whole seconds, at least 1.
fn duration(seconds: f64) -> String {
    let s = (seconds.round() as u64).max(1);
    format!("{s} seconds ({}h{}m{}s)", s / 3600, s / 60 % 60, s % 60)
}

impl PassStats {
    /// The active directions: name, title, participle, and keys of transfers and bytes.
    fn directions(&self) -> Vec<[&'static str; 3]> {
        let rows = [
            (self.directions.0, ["read", "Read", "read"]),
            (self.directions.1, ["write", "Write", "written"]),
        ];
        rows.into_iter().filter(|row| row.0).map(|row| row.1).collect()
    }

    fn counts(&self, name: &str) -> (u64, u64, f64) {
        match name {
            "read" => (self.share.read_ios, self.share.read_bytes, self.read_s),
            _ => (self.share.write_ios, self.share.write_bytes, self.write_s),
        }
    }

    /// The messages of STAT lines.
    pub fn messages(&self, wanted: ReportOptions) -> Vec<String> {
        let mut messages = Vec::new();
        for [name, title, past] in self.directions() {
            let (transfers, bytes, seconds) = self.counts(name);
            if wanted.transfers {
                messages.push(match self.is_total {
                    true => format!("Total bytes {past} in {transfers} transfers: {bytes}"),
                    false => format!("{bytes} bytes {past} in {transfers} transfers."),
                });
            }
            if wanted.throughput {
                let tail = throughput(bytes, transfers, seconds);
                messages.push(match self.is_total {
                    true => format!("Total {name} {tail}"),
                    false => format!("{title} {tail}"),
                });
            }
            if wanted.times {
                let total = if self.is_total { "Total " } else { "" };
                messages.push(format!("{total}{title} Time: {}", duration(seconds)));
            }
        }
        if self.is_total && wanted.times {
            messages.push(format!("Total overall runtime: {}", duration(self.overall_s)));
        }
        messages
    }

    /// The machine-readable line: fields end in semicolons.
    pub fn performance(&self, device: &str, wanted: ReportOptions) -> String {
        let (t, s) = (if self.is_total { "T" } else { "" }, self.share);
        let per_s = |n: u64, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let reads = [s.read_bytes, s.read_ios].map(|n| per_s(n, self.read_s));
        let writes = [s.write_bytes, s.write_ios].map(|n| per_s(n, self.write_s));
        let mut line = format!("{device};");
        if wanted.transfers {
            line += &format!("{};{t}Rbytes;{};{t}Rxfers;", s.read_bytes, s.read_ios);
            line += &format!("{};{t}Wbytes;{};{t}Wxfers;", s.write_bytes, s.write_ios);
        }
        if wanted.throughput {
            line += &format!("{:.1};{t}RB/s;{:.1};{t}RIOPS;", reads[0], reads[1]);
            line += &format!("{:.1};{t}WB/s;{:.1};{t}WIOPS;", writes[0], writes[1]);
        }
        if wanted.times {
            let whole = |seconds: f64| (seconds.round() as u64).max(1);
            let of = |direction: bool, seconds: f64| if direction { whole(seconds) } else { 0 };
            line += &match self.is_total {
                true => format!("{};secs;", whole(self.overall_s)),
                false => {
                    format!(
                        "{};Rsecs;{};Wsecs;",
                        of(self.directions.0, self.read_s),
                        of(self.directions.1, self.write_s)
                    )
                }
            };
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrote(bytes: u64, ios: u64, seconds: f64, is_total: bool) -> PassStats {
        let share = IoCounts { write_bytes: bytes, write_ios: ios, ..IoCounts::default() };
        PassStats {
            share,
            read_s: 0.0,
            write_s: seconds,
            overall_s: seconds,
            directions: (false, true),
            is_total,
        }
    }

    /// The published rates of 2005: block size, B/s, MB/s and IOPS.
    const PUBLISHED: [(f64, f64, &str, f64); 12] = [
        (262_144.0, 430_646_600.1, "410.70", 1642.9),
        (262_144.0, 430_876_514.5, "410.92", 1643.8),
        (262_144.0, 419_816_033.3, "400.37", 1601.6),
        (262_144.0, 419_868_739.1, "400.42", 1601.8),
        (262_144.0, 278_883_766.9, "265.96", 1065.3),
        (262_144.0, 281_018_368.0, "268.00", 1073.2),
        (262_144.0, 294_106_843.4, "280.48", 1122.6),
        (262_144.0, 294_842_094.9, "281.18", 1125.4),
        (1024.0, 38_327_973.2, "36.55", 37430.2),
        (1024.0, 38_321_291.3, "36.55", 37423.7),
        (1024.0, 39_967_796.7, "38.12", 39031.5),
        (1024.0, 40_131_755.9, "38.27", 39191.6),
    ];

    #[test]
    fn published_lines_follow_from_bytes_and_time() {
        for (block, rate, mib, iops) in PUBLISHED {
            // A thousand seconds, so that a tenth of a byte per second is visible.
            let transfers = (rate * 1000.0 / block).round();
            let text = throughput((rate * 1000.0).round() as u64, transfers as u64, 1000.0);
            assert!(text.starts_with(&format!("throughput: {rate:.1}B/s ({mib}MB/s), IOPS ")), "{text}");
            // The tool counts a transfer at its start and its bytes at its end, so it shows slightly more
            // transfers.
            let more = iops - transfers / 1000.0;
            assert!((-0.1..2.0).contains(&more), "{text} {iops}");
        }
        let done = wrote(430_646_600, 1643, 1.0, false);
        let wanted = ReportOptions { throughput: true, ..ReportOptions::default() };
        assert_eq!(done.messages(wanted), ["Write throughput: 430646600.0B/s (410.70MB/s), IOPS 1643.0/s."]);
    }

    #[test]
    fn session_line_matches_the_publication() {
        let share = IoCounts { write_bytes: 430_646_600, write_ios: 1643, ..IoCounts::default() };
        let line = stat("/dev/sda".into(), "Write", &share, 1.0);
        let (_, line_text) = line.split_once(" | STAT  | ").expect("a line of STAT");
        let expected = format!(
            "{} | v1.1.12 | /dev/sda | Write throughput: 430646600.0B/s (410.70MB/s), IOPS 1643.0/s.",
            std::process::id()
        );
        assert_eq!(line_text, expected);
    }

    #[test]
    fn every_message_has_the_tools_format() {
        let all = ReportOptions { throughput: true, transfers: true, times: true, performance: false };
        assert_eq!(
            wrote(1 << 20, 4, 75.2, false).messages(all),
            [
                "1048576 bytes written in 4 transfers.",
                "Write throughput: 13943.8B/s (0.01MB/s), IOPS 0.1/s.",
                "Write Time: 75 seconds (0h1m15s)"
            ]
        );
        let share = IoCounts { read_bytes: 4096, read_ios: 8, ..IoCounts::default() };
        let read = PassStats {
            share,
            read_s: 0.2,
            write_s: 0.0,
            overall_s: 0.2,
            directions: (true, false),
            is_total: true,
        };
        assert_eq!(
            read.messages(all),
            [
                "Total bytes read in 8 transfers: 4096",
                "Total read throughput: 20480.0B/s (0.02MB/s), IOPS 40.0/s.",
                "Total Read Time: 1 seconds (0h0m1s)",
                "Total overall runtime: 1 seconds (0h0m1s)"
            ]
        );
        assert_eq!(
            read.performance("/dev/sda", all),
            "/dev/sda;4096;TRbytes;8;TRxfers;0;TWbytes;0;TWxfers;20480.0;TRB/s;40.0;TRIOPS;0.0;TWB/s;0.0;TWIOPS;\
             1;secs;"
        );
        assert_eq!(
            wrote(1000, 2, 2.0, false).performance("d", all),
            "d;0;Rbytes;0;Rxfers;1000;Wbytes;2;Wxfers;0.0;RB/s;0.0;RIOPS;500.0;WB/s;1.0;WIOPS;0;Rsecs;2;Wsecs;"
        );
    }

    #[test]
    fn prefix_has_time_level_pid_version_and_device() {
        let head = LinePrefix { pid: 9796, device: "/dev/sda".into(), is_bare: false, is_quiet: true };
        let line = head.line("STAT", "x").expect("a line");
        assert!(
            line.starts_with("| ") && line.ends_with(" | STAT  | 9796 | v1.1.12 | /dev/sda | x"),
            "{line}"
        );
        assert!(head.line("START", "x").expect("a line").contains(" | START | "));
        assert_eq!(head.line("INFO", "x"), None);
        assert_eq!(LinePrefix { is_bare: true, ..head }.line("STAT", "x").as_deref(), Some("x"));
    }
}
