//! Commands whose Data-Out is shorter or longer than their CDB requires.

use interop::amounts::{DataOutMode, walk};
use interop::{Raw, Server, config};

/// RSP-005
#[test]
fn wrong_data_out_length_is_rejected_or_cut() {
    let server = Server::start(&config::standard());
    for mode in DataOutMode::ALL {
        walk(&mut Raw::session(server.portal(), &mode.keys()), mode, &[]);
    }
}
