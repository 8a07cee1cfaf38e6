//! Numbers in the format of coreutils.

const SI: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
const IEC: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// An amount in bytes, with one decimal below 10 units: `4.2 MB`, `30 kB`, `29 KiB`, `500 B`.
fn amount(bytes: u64, base: u64, units: &[&str; 7]) -> String {
    let (mut unit, mut scale) = (0, 1u128);
    while u128::from(bytes) >= scale * u128::from(base) && unit + 1 < units.len() {
        (unit, scale) = (unit + 1, scale * u128::from(base));
    }
    if unit == 0 {
        return format!("{bytes} B");
    }
    let tenths = (u128::from(bytes) * 10 + scale / 2) / scale;
    if tenths < 100 {
        return format!("{}.{} {}", tenths / 10, tenths % 10, units[unit]);
    }
    let whole = (u128::from(bytes) + scale / 2) / scale;
    match units.get(unit + 1) {
        Some(next) if whole >= u128::from(base) => format!("1.0 {next}"),
        _ => format!("{whole} {}", units[unit]),
    }
}

/// `4194304 bytes (4.2 MB, 4.0 MiB)`.
pub fn bytes(n: u64) -> String {
    let noun = if n == 1 { "byte" } else { "bytes" };
    match n {
        0..1000 => format!("{n} {noun}"),
        1000..1024 => format!("{n} {noun} ({})", amount(n, 1000, &SI)),
        _ => format!("{n} {noun} ({}, {})", amount(n, 1000, &SI), amount(n, 1024, &IEC)),
    }
}

/// A rate in bytes per second, decimal, at least in kB/s, with one decimal below 100.
pub fn rate(per_second: f64) -> String {
    let (mut unit, mut scale) = (1, 1000.0);
    while per_second >= scale * 1000.0 && unit + 1 < SI.len() {
        (unit, scale) = (unit + 1, scale * 1000.0);
    }
    let value = per_second / scale;
    let short = format!("{value:.1}");
    let shown = if short.len() > 4 { format!("{value:.0}") } else { short };
    format!("{shown} {}/s", SI[unit])
}

/// Seconds with six significant digits, as `%g` writes them: `0.433073`, `9.6288e-05`, `12.5`.
pub fn seconds(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{value:.*}", (5 - exponent) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_coreutils_are_reproduced() {
        let cases = [
            (4_194_304, "4194304 bytes (4.2 MB, 4.0 MiB)"),
            (1, "1 byte"),
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1000 bytes (1.0 kB)"),
            (1024, "1024 bytes (1.0 kB, 1.0 KiB)"),
            (30_000, "30000 bytes (30 kB, 29 KiB)"),
            (314_572_800, "314572800 bytes (315 MB, 300 MiB)"),
            (1_048_576, "1048576 bytes (1.0 MB, 1.0 MiB)"),
            (9_960_000, "9960000 bytes (10 MB, 9.5 MiB)"),
            (999_999_999, "999999999 bytes (1.0 GB, 954 MiB)"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
        // Measured bytes and seconds, and the output of the tool.
        let rates = [
            (4_194_304.0, 0.002_998_82, "1.4 GB/s"),
            (4_194_304.0, 0.007_983_06, "525 MB/s"),
            (1.0, 9.6288e-05, "10.4 kB/s"),
            (1536.0, 3.2548e-05, "47.2 MB/s"),
            (314_572_800.0, 0.433_073, "726 MB/s"),
            (0.0, 2.72e-05, "0.0 kB/s"),
            (1_048_576.0, 0.000_655_666, "1.6 GB/s"),
            (500.0, 1.0, "0.5 kB/s"),
        ];
        for (bytes, seconds, text) in rates {
            assert_eq!(rate(bytes / seconds), text);
        }
        for (value, text) in [
            (0.433_073, "0.433073"),
            (9.6288e-05, "9.6288e-05"),
            (2.72e-05, "2.72e-05"),
            (0.000_858_787, "0.000858787"),
            (12.5, "12.5"),
            (100.0, "100"),
            (1_234_567.0, "1.23457e+06"),
        ] {
            assert_eq!(seconds(value), text);
        }
    }
}
