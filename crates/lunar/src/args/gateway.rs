//! Arguments of `lunar gateway`.

use super::AdminArgs;
use clap::Subcommand;

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
}
