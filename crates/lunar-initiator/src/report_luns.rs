//! The list of logical units of a target, and the two forms of a LUN.

#[cfg(doc)]
use crate::Lun;
use crate::lun::{BusyRetry, List};
use crate::{Error, Session};
use lunar_wire::scsi::{cdb, lun};

/// The LUNs of a target in the order of REPORT LUNS (SPC-5 section 6.34), eight bytes each. [`lun_number`]
/// converts them for [`Lun::open`].
///
/// ```no_run
/// use lunar_initiator::{Error, Lun, Session, lun_number, luns};
///
/// async fn capacity(session: &Session) -> Result<u64, Error> {
///     let mut sum = 0;
///     for number in luns(session).await?.into_iter().filter_map(lun_number) {
///         sum += Lun::open(session, number).await?.properties().capacity();
///     }
///     Ok(sum)
/// }
/// ```
///
/// # Errors
/// Those of the command.
pub async fn luns(session: &Session) -> Result<Vec<u64>, Error> {
    let head = lun::LIST_HEADER_LEN as u32;
    let list = List { cdb: cdb::report_luns, head }.read(BusyRetry::of(session), session, 0).await?;
    Ok(lun::list(&list).collect())
}

/// The number of a LUN of eight bytes. None for a LUN of several levels and for a well-known logical unit.
pub fn lun_number(address: u64) -> Option<u16> {
    lun::decode(address)
}

/// The eight bytes of a LUN number below 16384, as [`Session::submit`] and [`Session::manage`] take them.
pub fn lun_address(number: u16) -> u64 {
    lun::encode(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lun_number_round_trips_through_its_address() {
        for number in [0, 1, 255, 256, 16383] {
            assert_eq!(lun_number(lun_address(number)), Some(number));
        }
        assert_eq!(lun_number(lun::REPORT_LUNS), None);
    }
}
