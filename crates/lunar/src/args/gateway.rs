//! Arguments of `lunar gateway`.

use super::AdminArgs;
use clap::Subcommand;

/// A gateway of the group.
#[derive(Debug, clap::Args)]
pub struct ChosenGateway {
    /// Number of the gateway [default: that of the server]
    pub id: Option<u8>,
    #[command(flatten)]
    pub common: AdminArgs,
}

/// Subcommands of `lunar gateway`.
#[derive(Debug, Subcommand)]
pub enum GatewayCommand {
    /// List the gateways of the group of a server
    List(AdminArgs),
    /// Show the images that a server shares with other gateways
    Show {
        /// Image: POOL/[NAMESPACE/]IMAGE [default: all shared images]
        image: Option<String>,
        #[command(flatten)]
        common: AdminArgs,
    },
    /// Let the hosts of a gateway use other gateways, until it is resumed
    Drain(ChosenGateway),
    /// Let hosts use a gateway again
    Resume(ChosenGateway),
    /// Let a gateway serve the images that one gateway at a time serves
    #[command(alias = "fail-over")]
    Failover {
        /// Image: POOL/[NAMESPACE/]IMAGE [default: all shared images]
        #[arg(long)]
        image: Option<String>,
        #[command(flatten)]
        gateway: ChosenGateway,
    },
}
