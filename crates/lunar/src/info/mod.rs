//! `lunar info`: properties and pages that a logical unit reports, decoded.

mod gather;
pub mod namespace;
pub mod pages;

use crate::client::{self, ClientArgs, json, run};
use crate::error_hints::with_url_hint;
use crate::exit::{Exit, Failure};
use crate::hex;
use crate::rbd_image;
use crate::tree::{self, Node};
use clap::Args;
use lunar_initiator::nvme::{self, NvmeUrl};
use lunar_server::config::attachment;

const EXAMPLES: &str = "\
Examples:
  lunar info iscsi://127.0.0.1
  lunar info iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0 --all --json
  lunar info iscsi://127.0.0.1 --page 0x83
  lunar info iscsi://127.0.0.1 --page b0 --hex
  lunar info nvme://192.0.2.10/nqn.2026-11.org.example:disks/1
  lunar info rbd:rbd/disk1";

/// Arguments of `lunar info`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Info {
    /// iscsi://HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...], an iser:// or srp:// URL, nvme://HOST[:PORT]/NQN[/NAMESPACE],
    /// or rbd:POOL/IMAGE
    url: String,

    /// Show one VPD page: its code in hexadecimal digits
    #[arg(long, value_name = "CODE", value_parser = code)]
    page: Option<u8>,

    /// Show supported commands and task management functions too
    #[arg(long, conflicts_with = "page")]
    all: bool,

    /// Dump the bytes of each response
    #[arg(long, conflicts_with = "json")]
    hex: bool,

    #[command(flatten)]
    common: ClientArgs,
}

fn code(text: &str) -> Result<u8, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text).trim_end_matches('h');
    u8::from_str_radix(digits, 16).map_err(|_| "a code is one or two hexadecimal digits, such as 0x83".into())
}

/// The properties of an image of Ceph RBD, which has no pages.
fn image(args: Info) -> Result<String, Failure> {
    if args.page.is_some() || args.all || args.hex {
        let what = format!("{} is an image of Ceph RBD: it has no pages and no commands", args.url);
        return Err(Failure::new(Exit::Invalid, what, "leave --page, --all and --hex out"));
    }
    let (common, text) = (args.common, args.url);
    let fields = run(common, move || async move { rbd_image::properties(&text).await })?;
    if common.json { json(&Node::Map(fields)) } else { Ok(tree::lines(&fields)) }
}

/// The properties of an NVMe namespace, which has no pages of SCSI.
fn of_namespace(args: Info) -> Result<String, Failure> {
    if args.page.is_some() || args.all || args.hex {
        let what = format!("{} is an NVMe namespace: it has no SCSI pages and commands", args.url);
        return Err(Failure::new(Exit::Invalid, what, "leave --page, --all and --hex out"));
    }
    let url = args.url.parse::<NvmeUrl>()?.with_default("login_tries", "1")?;
    let fields = run(args.common, move || async move { namespace::properties(&url).await })?;
    if args.common.json { json(&Node::Map(fields)) } else { Ok(tree::lines(&fields)) }
}

/// The text to print.
///
/// # Errors
/// When the logical unit does not exist or does not respond.
pub fn info(args: Info) -> Result<String, Failure> {
    if attachment::is_image(&args.url) {
        return image(args);
    }
    if nvme::is_url(&args.url) {
        return of_namespace(args);
    }
    let url = client::url(&args.url)?;
    let asked = url.clone();
    let found = run(args.common, move || async move {
        match args.page {
            Some(page) => gather::page(&asked, page).await,
            None => gather::all(&asked, args.all).await,
        }
    });
    let found = found.map_err(|failure| with_url_hint(&url, failure))?;
    if args.page.is_some() && found.answers.is_empty() {
        let what = found
            .errors
            .first()
            .map_or("the logical unit does not have the requested page", |why| why.as_str());
        return Err(Failure::new(Exit::NotFound, what, "lunar info without --page shows all pages"));
    }
    if args.hex {
        let dump = |(what, bytes): &(String, Vec<u8>)| format!("{what}\n{}", hex::dump(bytes));
        return Ok(found.answers.iter().map(dump).collect::<Vec<_>>().join("\n"));
    }
    let mut fields = found.fields;
    if !found.errors.is_empty() {
        fields.push(("errors".into(), Node::List(found.errors.into_iter().map(Node::text).collect())));
    }
    if args.common.json {
        return json(&Node::Map(fields));
    }
    Ok(tree::lines(&fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_named_in_hexadecimal() {
        assert_eq!(["0x83", "83", "83h", "b0"].map(|text| code(text).unwrap()), [0x83, 0x83, 0x83, 0xb0]);
        assert!(["", "0x", "100", "g"].iter().all(|text| code(text).is_err()));
    }
}
