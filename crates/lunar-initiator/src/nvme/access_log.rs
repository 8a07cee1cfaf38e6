//! The log page with the access states of namespaces (ANA).

use super::controller::NvmeController;
use super::lifetime::log_entry;
use crate::Error;
use crate::multipath::{PathState, ana};
use lunar_wire::nvme::{IdentifyController, log_page};

/// CMIC bit 3: the controller reports access states.
const REPORTS_ACCESS: u8 = 1 << 3;
/// LPA bit 2: a part of a log page can be read.
const HAS_OFFSETS: u8 = 1 << 2;
/// Bytes of the first read of the log page. They suffice for most controllers.
const FIRST_PIECE: usize = 4096;
/// Bytes of each further read.
const PIECE: usize = 128 << 10;
/// The most bytes of the log page that are read. It has a limit because the controller chooses its length.
const MAX_LOG: u64 = 1 << 20;
/// All namespaces.
const ALL: u32 = u32::MAX;

/// Whether the controller reports access states. Otherwise all of its namespaces are optimized.
pub fn is_reported(identify: &IdentifyController) -> bool {
    identify.multipath & REPORTS_ACCESS != 0
}

/// Reads the state of a namespace from the log page of its controller. `group` is its group (ANAGRPID), or 0.
///
/// # Errors
/// Those of Get Log Page.
pub async fn read(controller: &NvmeController, namespace: u32, group: u32) -> Result<PathState, Error> {
    let info = controller.info();
    let limit = usize::try_from(info.max_transfer.unwrap_or(MAX_LOG)).unwrap_or(usize::MAX);
    let has_offsets = info.identify.log_attributes & HAS_OFFSETS != 0;
    let len = if has_offsets { log_len(&info.identify) } else { log_len(&info.identify).min(limit) };
    let mut page: Vec<u8> = Vec::new();
    loop {
        let most = match page.is_empty() {
            _ if !has_offsets => len,
            true => FIRST_PIECE,
            false => PIECE,
        };
        let piece = (len - page.len()).min(most).min(limit);
        let sqe = log_entry(log_page::ACCESS.into(), ALL, page.len() as u64, piece as u32);
        page.extend_from_slice(&controller.read_admin(sqe, piece).await?);
        let (state, is_final) = ana::state_in(&page, namespace, group);
        if is_final || page.len() >= len {
            return Ok(state);
        }
    }
}

/// The length of the log page with all groups and namespaces in bytes, as Linux computes it.
fn log_len(identify: &IdentifyController) -> usize {
    let namespaces = match identify.max_namespaces {
        0 => identify.namespaces,
        most => most,
    };
    let len = 16 + 32 * u64::from(identify.access_groups) + 4 * u64::from(namespaces);
    len.min(MAX_LOG) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_length_is_bounded_whatever_the_controller_claims() {
        let len = |access_groups, namespaces, max_namespaces| {
            let zeroed = IdentifyController::zeroed();
            log_len(&IdentifyController { access_groups, namespaces, max_namespaces, ..zeroed })
        };
        assert_eq!(len(128, 9, 1024), 8208, "as Linux computes it");
        assert_eq!(len(1, 2, 0), 56);
        assert_eq!(len(u32::MAX, u32::MAX, u32::MAX), 1 << 20);
    }
}
