//! A session and a logical unit of any device type, for commands that need no disk.

use lunar_initiator::options::Transport;
use lunar_initiator::{Direction, Error, ErrorCode, Session, Url};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb::Cdb;
use lunar_wire::scsi::lun::encode;

/// A session and the logical unit of a URL.
pub struct OpenLun {
    /// The session.
    pub session: Session,
    /// The LUN, encoded in eight bytes (SAM-5 section 4.7).
    pub lun: u64,
    /// The LUN as a number.
    pub number: u16,
}

impl OpenLun {
    /// Logs in with this ISID, unless the URL has another one.
    pub async fn open(url: &Url, isid: Option<[u8; 6]>) -> Result<OpenLun, Error> {
        let mut options = url.options()?;
        options.isid = options.isid.or(isid);
        let (url, session) = lunar_initiator::connect_with(url, &options).await?;
        let number = lunar_initiator::lun_of(&url, &session).await?;
        Ok(OpenLun { session, lun: encode(number), number })
    }

    /// Sends a command, and returns at most `len` bytes of its data.
    pub async fn read(&self, cdb: Cdb, len: usize) -> Result<Vec<u8>, Error> {
        let (result, buf) = self.session.perform(self.lun, cdb, Direction::In(Buf::zeroed(len))).await;
        let got = result?.transferred;
        Ok(buf.map(|buf| buf[..got.min(buf.len())].to_vec()).unwrap_or_default())
    }

    /// Sends data with a command.
    pub async fn write(&self, cdb: Cdb, data: &[u8]) -> Result<(), Error> {
        let buf = Buf::copy_of(data);
        self.session.perform(self.lun, cdb, Direction::Out(buf)).await.0.map(drop)
    }

    /// Logs out. A missing logout response is ignored.
    pub async fn close(&self) {
        _ = self.session.close().await;
    }

    /// Our initiator port, in the form of an iSCSI TransportID; over SRP its 32 hexadecimal digits.
    pub fn our_port(&self) -> String {
        let (isid, options) = (self.session.info().isid, self.session.options());
        match options.transport {
            Transport::Srp => crate::hex::digits(&options.srp_port(isid).0),
            _ => format!("{},i,0x{}", options.initiator, crate::hex::digits(&isid)),
        }
    }
}

/// Whether the logical unit rejected the command. A rejection is a result to report. It does not end `lunar info` or
/// `lunar pr`.
pub fn is_rejected(e: &Error) -> bool {
    matches!(e.code, ErrorCode::ScsiError | ErrorCode::ReservationConflict)
}
