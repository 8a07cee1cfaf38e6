//! A logical unit that is asked, whatever it is: no disk is needed.

use lunar_initiator::options::Transport;
use lunar_initiator::{Direction, Error, ErrorCode, Session, Url};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb::Cdb;
use lunar_wire::scsi::lun::encode;

/// A session and the logical unit of a URL.
pub struct OpenLun {
    /// The session.
    pub session: Session,
    /// The eight bytes of its LUN.
    pub lun: u64,
    /// Its number.
    pub number: u16,
}

impl OpenLun {
    /// Logs in; under this ISID, unless the URL names one.
    pub async fn open(url: &Url, isid: Option<[u8; 6]>) -> Result<OpenLun, Error> {
        let mut options = url.options()?;
        options.isid = options.isid.or(isid);
        let (url, session) = lunar_initiator::connect_with(url, &options).await?;
        let number = lunar_initiator::lun_of(&url, &session).await?;
        Ok(OpenLun { session, lun: encode(number), number })
    }

    /// The data of a command, up to so many bytes.
    pub async fn read(&self, cdb: Cdb, len: usize) -> Result<Vec<u8>, Error> {
        let (result, buf) = self.session.perform(self.lun, cdb, Direction::In(Buf::zeroed(len))).await;
        let got = result?.transferred;
        Ok(buf.map(|buf| buf[..got.min(buf.len())].to_vec()).unwrap_or_default())
    }

    /// Sends data with a command.
    pub async fn write(&self, cdb: Cdb, data: &[u8]) -> Result<(), Error> {
        let mut buf = Buf::zeroed(data.len());
        buf.copy_from_slice(data);
        self.session.perform(self.lun, cdb, Direction::Out(buf)).await.0.map(drop)
    }

    /// Logs out. A target that does not answer that changes nothing.
    pub async fn close(&self) {
        _ = self.session.close().await;
    }

    /// Our initiator port, as a TransportID of iSCSI tells it; over SRP its 32 hexadecimal digits.
    pub fn our_port(&self) -> String {
        let (isid, options) = (self.session.facts().isid, self.session.options());
        match options.transport {
            Transport::Srp => crate::hex::digits(&options.srp_port(isid).0),
            _ => format!("{},i,0x{}", options.initiator, crate::hex::digits(&isid)),
        }
    }
}

/// The logical unit answered, and refused: that is a fact about it, not the end of the command.
pub fn is_rejected(e: &Error) -> bool {
    matches!(e.code, ErrorCode::ScsiError | ErrorCode::ReservationConflict)
}
