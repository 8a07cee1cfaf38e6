//! `lunar page`: shows the live page of a running server to a browser of this host.

use crate::args::ServerChoice;
use crate::exit::Failure;
use crate::output;
use clap::Args;
use lunar_api::PageBridge;
use lunar_api::client::{Client, ServerReport};
use std::net::SocketAddr;
use std::time::Duration;

/// Time limit of the first request, which checks that the server answers.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "Examples:
  lunar page
  lunar page --write
  ssh -L 8080:127.0.0.1:8080 HOST lunar page --listen 127.0.0.1:8080

Prints a URL with a token that is valid until the command ends, and serves until then.";

/// Arguments of `lunar page`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PageArgs {
    /// Let the page change the server
    #[arg(long)]
    pub write: bool,

    /// Loopback address of the page [default: 127.0.0.1, any free port]
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub listen: SocketAddr,

    #[command(flatten)]
    pub choice: ServerChoice,
}

/// Prints the URL, and serves the page until the process ends.
pub fn page(args: &PageArgs) -> Result<(), Failure> {
    let server = args.choice.one()?;
    Client::new(&server, CHECK_TIMEOUT).get::<ServerReport>("/v1/server")?;
    let bridge = PageBridge::bind(args.listen, server, args.write)?;
    output::stdout(format!("{}\n", bridge.url()))?;
    Ok(bridge.run()?)
}
