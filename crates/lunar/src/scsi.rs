//! `lunar scsi`: sends any command to a logical unit, and shows the whole response.

use crate::client::{self, ClientArgs, json, run};
use crate::error_hints::with_url_hint;
use crate::exit::{Exit, Failure};
use crate::{hex, output};
use clap::Args;
use lunar_initiator::{Command, Completion, Direction, MAX_CDB_LEN, Url};
use lunar_runtime::buf::Buf;
use lunar_server::Diagnostic;
use lunar_wire::scsi::lun::encode;
use lunar_wire::scsi::{Sense, Status, cdb, status_name};
use serde::Serialize;
use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;
use utoipa::ToSchema;

const EXAMPLES: &str = "\
Examples:
  lunar scsi iscsi://127.0.0.1 12:00:00:00:60:00 --in 96 --hex     INQUIRY
  lunar scsi iscsi://127.0.0.1 000000000000 --once                 TEST UNIT READY, once
  lunar scsi iscsi://127.0.0.1 28:00:00:00:00:00:00:00:08:00 --in 4096 > blocks
  lunar scsi iscsi://127.0.0.1 2a:00:00:00:00:00:00:00:08:00 --out blocks

Received data goes to stdout: raw bytes, or a dump if stdout is a terminal. Status, sense data and residual go to
stderr.";

/// Limit of the data of a command, in bytes.
const MAX: u64 = 32 << 20;

/// Arguments of `lunar scsi`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Scsi {
    /// iscsi://HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...], or an iser:// or srp:// URL
    url: String,

    /// CDB in hexadecimal digits, at most 260 bytes
    #[arg(value_name = "CDB-HEX", required = true)]
    cdb: Vec<String>,

    /// Receive at most this many bytes of data (512, 64k)
    #[arg(long = "in", value_name = "SIZE", value_parser = data_size)]
    take: Option<u64>,

    /// Send data from a file, from stdin (-), or from hexadecimal digits
    #[arg(long = "out", value_name = "FILE|-|hex:BYTES", conflicts_with = "take")]
    give: Option<String>,

    /// Accept a CDB whose length does not match its operation code; a short CDB is padded with zeros
    #[arg(long)]
    raw: bool,

    /// Do not retry if the logical unit is busy or reports a unit attention
    #[arg(long)]
    once: bool,

    /// Dump received data in hexadecimal and ASCII
    #[arg(long, conflicts_with = "json")]
    hex: bool,

    #[command(flatten)]
    common: ClientArgs,
}

/// Parses the value of `--in`.
fn data_size(text: &str) -> Result<u64, String> {
    let bytes = lunar_proto::size::parse(text).map_err(|e| e.to_string())?;
    if (1..=MAX).contains(&bytes) { Ok(bytes) } else { Err(format!("use 1 to {MAX} bytes")) }
}

/// The outcome of the command, in JSON.
#[derive(Serialize, ToSchema)]
pub struct ScsiReport {
    status: u8,
    status_name: Option<&'static str>,
    sense: Option<SenseReport>,
    /// Requested or offered bytes of data.
    expected: usize,
    transferred: usize,
    /// Expected bytes that were not transferred.
    residual: usize,
    /// Further bytes that the logical unit would have transferred.
    overflow: u32,
    /// The received data, in hexadecimal digits.
    data: String,
}

/// Sense data in JSON.
#[derive(Serialize, ToSchema)]
pub struct SenseReport {
    key: u8,
    asc: u8,
    ascq: u8,
    text: String,
    detail: Option<String>,
    information: Option<u64>,
    command_specific: Option<u64>,
    /// The raw bytes, in hexadecimal digits.
    bytes: String,
}

/// The command to send.
struct ScsiCommand {
    url: Url,
    cdb: Vec<u8>,
    data: Vec<u8>,
    take: usize,
    once: bool,
}

/// The response and the received data.
struct ScsiResponse {
    completion: Completion,
    expected: usize,
    data: Vec<u8>,
}

/// Sends the command, and prints the response.
///
/// # Errors
/// When there is no response, or an argument is invalid.
pub fn scsi(args: Scsi) -> Result<ExitCode, Failure> {
    let order = ScsiCommand {
        url: client::url(&args.url)?,
        cdb: cdb(&args.cdb.join(" "), args.raw)?,
        data: args.give.as_deref().map(given).transpose()?.unwrap_or_default(),
        take: args.take.unwrap_or(0) as usize,
        once: args.once,
    };
    let (url, has_data) = (order.url.clone(), order.take > 0 || !order.data.is_empty());
    let answer = run(args.common, move || send(order)).map_err(|failure| with_url_hint(&url, failure));
    let answer = answer.map_err(|failure| if has_data { failure } else { without_data(failure) })?;
    let status = exit(answer.completion.status);
    if args.common.json {
        output::stdout(json(&report(&answer))?)?;
    } else {
        let dump = args.hex || io::stdout().is_terminal();
        // The status first, because writing the data may fail.
        output::stderr(words(&answer));
        output::stdout(if dump { hex::dump(&answer.data).into_bytes() } else { answer.data })?;
    }
    Ok(status)
}

/// Adds a hint to a timeout of a command without --in: some targets never end a command whose data the initiator does not
/// expect.
fn without_data(failure: Failure) -> Failure {
    let is_late = failure.exit == Exit::TimedOut;
    let more = |hint: String| format!("if the command returns data, add --in BYTES; else {hint}");
    let hinted = |problem: Diagnostic| Diagnostic { hint: problem.hint.map(more), ..problem };
    match is_late {
        true => Failure { problems: failure.problems.into_iter().map(hinted).collect(), ..failure },
        false => failure,
    }
}

fn exit(status: u8) -> ExitCode {
    match status {
        s if s == Status::Good as u8 || s == Status::ConditionMet as u8 => ExitCode::SUCCESS,
        s if s == Status::ReservationConflict as u8 => Exit::NoAccess.into(),
        _ => Exit::Scsi.into(),
    }
}

async fn send(order: ScsiCommand) -> Result<ScsiResponse, Failure> {
    let session = lunar_initiator::connect(&order.url).await?;
    let lun = encode(lunar_initiator::lun_of(&order.url, &session).await?);
    let direction = match (order.take, order.data.len()) {
        (0, 0) => Direction::None,
        (0, _) => Direction::Out(Buf::copy_of(&order.data)),
        (take, _) => Direction::In(Buf::zeroed(take)),
    };
    let expected = direction.expected();
    let mut command = Command::long(lun, &order.cdb, direction)?;
    command.repeatable &= !order.once;
    let (result, buf) = match order.once {
        true => session.submit(command).await,
        false => session.ask(command).await,
    };
    // The command has ended: a missing logout response is ignored.
    _ = session.close().await;
    let completion = result?;
    let came = if order.take == 0 { 0 } else { completion.transferred };
    let data = buf.map(|buf| buf[..came.min(buf.len())].to_vec()).unwrap_or_default();
    Ok(ScsiResponse { completion, expected, data })
}

fn cdb(text: &str, raw: bool) -> Result<Vec<u8>, Failure> {
    let hint = "write the bytes of the CDB in hexadecimal, such as 12:00:00:00:60:00 for an INQUIRY";
    let bytes =
        hex::parse(text).map_err(|why| Failure::new(Exit::Invalid, format!("the CDB: {why}"), hint))?;
    if bytes.is_empty() || bytes.len() > MAX_CDB_LEN {
        let what =
            format!("the CDB has {}, and must have 1 to {MAX_CDB_LEN}", output::count(bytes.len(), "byte"));
        return Err(Failure::new(Exit::Invalid, what, hint));
    }
    match cdb::len(&bytes).filter(|len| !raw && *len != bytes.len()) {
        None => Ok(bytes),
        Some(len) => {
            let (has, code) = (output::count(bytes.len(), "byte"), cdb::opcode(&bytes));
            let what = format!("the CDB has {has}; operation code {code:02x}h requires {len}");
            let what = if code == cdb::VARIABLE_LENGTH {
                format!("the CDB has {has}, but its length field requires {len}")
            } else {
                what
            };
            Err(Failure::new(Exit::Invalid, what, "correct the CDB, or send it unchanged with --raw"))
        }
    }
}

/// The data of `--out`.
fn given(what: &str) -> Result<Vec<u8>, Failure> {
    let invalid = |why: String, hint: &str| Failure::new(Exit::Invalid, format!("--out: {why}"), hint);
    let bytes = match what.strip_prefix("hex:") {
        Some(digits) => hex::parse(digits)
            .map_err(|why| invalid(why, "write two hexadecimal digits for each byte: hex:00ff"))?,
        None => read(what).map_err(|e| {
            let why = format!("cannot read {}: {e}", what.escape_debug());
            let exit = if e.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Invalid };
            Failure { exit, ..invalid(why, "name a file, - for stdin, or hex:BYTES") }
        })?,
    };
    match bytes.len() as u64 {
        0 => Err(invalid("the data is empty".into(), "remove --out for a command without data")),
        n if n > MAX => Err(invalid(
            format!("{n} bytes of data exceed the limit of {MAX} bytes"),
            "use several commands of at most 32 MiB each",
        )),
        _ => Ok(bytes),
    }
}

/// Reads a file or stdin, up to one byte more than the limit.
fn read(file: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match file {
        "-" => io::stdin().lock().take(MAX + 1).read_to_end(&mut bytes)?,
        _ => std::fs::File::open(file)?.take(MAX + 1).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

fn report(answer: &ScsiResponse) -> ScsiReport {
    let c = &answer.completion;
    let sense = |s: Sense| SenseReport {
        key: s.key,
        asc: s.asc,
        ascq: s.ascq,
        text: s.to_string(),
        detail: s.detail(),
        information: s.information,
        command_specific: s.command,
        bytes: hex::digits(&c.sense),
    };
    ScsiReport {
        status: c.status,
        status_name: status_name(c.status),
        sense: c.sense().map(sense),
        expected: answer.expected,
        transferred: c.transferred,
        residual: answer.expected.saturating_sub(c.transferred),
        overflow: c.overflow,
        data: hex::digits(&answer.data),
    }
}

/// The text for stderr.
fn words(answer: &ScsiResponse) -> String {
    let report = report(answer);
    let mut text = format!("status: {} ({:02x}h)\n", report.status_name.unwrap_or("unknown"), report.status);
    if let Some(sense) = report.sense {
        text += &format!("sense: {}\n", sense.text);
        text += &sense.detail.map(|detail| format!("  {detail}\n")).unwrap_or_default();
        text += &sense.information.map(|n| format!("  information: {n} ({n:x}h)\n")).unwrap_or_default();
        text += &format!("sense data: {}\n", sense.bytes);
    }
    if report.residual > 0 {
        text += &format!("residual: {} of {} bytes were not transferred\n", report.residual, report.expected);
    }
    if report.overflow > 0 {
        text += &format!("overflow: the logical unit transfers {} more bytes\n", report.overflow);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdb_has_as_many_bytes_as_its_operation_code_says() {
        assert_eq!(cdb("9e10", true).unwrap(), [0x9e, 0x10]);
        for (code, len) in [("00", 6), ("28", 10), ("43", 10), ("88", 16), ("a0", 12), ("7e", 3), ("c0", 1)] {
            let text = code.to_owned() + &"00".repeat(len - 1);
            cdb(&text, false).unwrap();
            let is_any = code == "7e" || code == "c0";
            assert_eq!(cdb(&(text + "00"), false).is_ok(), is_any, "{code}");
        }
        assert_eq!(cdb("12 00 00 00 60 00", false).unwrap(), [0x12, 0, 0, 0, 0x60, 0]);
        for bad in ["", "1", "zz"] {
            assert_eq!(cdb(bad, false).unwrap_err().exit, Exit::Invalid, "{bad:?}");
        }
    }

    /// READ(32), and a CDB of the greatest length.
    #[test]
    fn long_cdb_has_its_own_length_field() {
        for (more, len) in [("18", 32), ("fc", 260)] {
            let text = format!("7f 00 00 00 00 00 00 {more}") + &"00".repeat(len - 8);
            assert_eq!(cdb(&text, false).unwrap().len(), len);
            let wrong = cdb(&text[..text.len() - 2], false).unwrap_err();
            assert!(format!("{wrong:?}").contains(&format!("requires {len}")), "{wrong:?}");
            cdb(&text[..text.len() - 2], true).unwrap();
        }
        assert_eq!(cdb(&"00".repeat(261), true).unwrap_err().exit, Exit::Invalid);
    }

    #[test]
    fn command_without_data_that_is_late_may_lack_its_in() {
        let hint = |exit| without_data(Failure::new(exit, "late", "wait")).problems[0].hint.clone();
        assert!(hint(Exit::TimedOut).is_some_and(|hint| hint.contains("--in") && hint.ends_with("wait")));
        assert_eq!(hint(Exit::Refused).as_deref(), Some("wait"));
    }

    #[test]
    fn data_to_send_is_there() {
        assert_eq!(given("hex:00 ff").unwrap(), [0, 0xff]);
        for bad in ["hex:", "hex:0", "/dev/null", "/"] {
            assert_eq!(given(bad).unwrap_err().exit, Exit::Invalid, "{bad:?}");
        }
        assert_eq!(given("/no/such/file").unwrap_err().exit, Exit::NotFound);
    }

    #[test]
    fn status_sense_and_residual_are_shown() {
        let mut completion = Completion::default();
        (completion.status, completion.sense) = (2, Sense::cdb_field(2, 7).encode(false).into());
        let text = words(&ScsiResponse { completion, expected: 96, data: Vec::new() });
        assert!(
            text.starts_with("status: CHECK CONDITION (02h)\nsense: illegal request (5/24/00)"),
            "{text}"
        );
        assert!(text.ends_with("residual: 96 of 96 bytes were not transferred\n"), "{text}");
        let mut completion = Completion::default();
        (completion.transferred, completion.overflow) = (4, 92);
        let text = words(&ScsiResponse { completion, expected: 4, data: vec![0; 4] });
        assert_eq!(text, "status: GOOD (00h)\noverflow: the logical unit transfers 92 more bytes\n");
    }
}
