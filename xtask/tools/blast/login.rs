//! The login of one session; also clears the unit attentions of a new nexus.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use socket2::SockRef;

use crate::bytes::{BHS, get24, get32, padded, put24, put32};
use crate::job::BlastJob;

/// A target without output for this long is an error.
const SILENCE: Duration = Duration::from_secs(20);
const SOCKET_BUFFER: usize = 4 << 20;
const MAX_TRIES: u32 = 8;

/// The result of a login.
#[derive(Debug)]
pub struct BlastLogin {
    /// The connection, in full feature phase
    pub socket: TcpStream,
    /// The next CmdSN
    pub cmd_sn: u32,
    /// The highest CmdSN that may be sent
    pub max_cmd_sn: u32,
    /// The next StatSN
    pub exp_stat_sn: u32,
    /// The unsolicited bytes of a WRITE
    pub first_burst: u32,
    /// The longest data segment that the target accepts, in bytes
    pub max_segment: u32,
}

impl BlastLogin {
    /// Connects and logs in as session number `id`.
    pub fn open(job: &BlastJob, id: u32) -> Result<BlastLogin> {
        let mut login = BlastLogin {
            socket: connect(job.portal)?,
            cmd_sn: 1,
            max_cmd_sn: 1,
            exp_stat_sn: 0,
            first_burst: 65_536,
            max_segment: 8192,
        };
        login.negotiate(job, id)?;
        for lun in job.lun..job.lun + job.luns {
            login.settle(lun, job.data_digest)?;
        }
        Ok(login)
    }

    /// Sends a request of the operational stage; some targets need several before they allow the transition.
    fn negotiate(&mut self, job: &BlastJob, id: u32) -> Result<()> {
        for _ in 0..MAX_TRIES {
            let keys = keys(job, id);
            let mut header = [0; BHS];
            header[0] = 0x43;
            header[1] = 0x87; // T, from the operational stage to the full feature phase
            put24(&mut header, 5, keys.len() as u32);
            header[8] = 0x80; // ISID of the random kind
            header[10..14].copy_from_slice(&(0x1200_0000 | id).to_be_bytes());
            put32(&mut header, 16, 1);
            put32(&mut header, 24, self.cmd_sn);
            put32(&mut header, 28, self.exp_stat_sn);
            self.send(&header, &keys)?;
            let (answer, text) = self.receive()?;
            ensure!(answer[0] & 0x3f == 0x23, "a login was answered by opcode {:#04x}", answer[0] & 0x3f);
            ensure!(answer[36] == 0, "login refused with status {:02x}/{:02x}", answer[36], answer[37]);
            self.cmd_sn = get32(&answer, 28);
            self.take_keys(&text, job)?;
            if answer[1] & 0x83 == 0x83 {
                return Ok(());
            }
        }
        bail!("login did not finish")
    }

    fn take_keys(&mut self, text: &[u8], job: &BlastJob) -> Result<()> {
        let text = String::from_utf8_lossy(text);
        for (key, value) in text.split('\0').filter_map(|pair| pair.split_once('=')) {
            match key {
                "FirstBurstLength" => self.first_burst = value.parse()?,
                "MaxRecvDataSegmentLength" => self.max_segment = value.parse()?,
                "DataDigest" => ensure!(value == digest(job), "the target answered DataDigest={value}"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends TEST UNIT READY until its status is GOOD, so that unit attentions do not count as errors later.
    fn settle(&mut self, lun: u16, digests: bool) -> Result<()> {
        for tag in 0..MAX_TRIES {
            let mut header = [0; BHS];
            header[0] = 0x01;
            header[1] = 0x81;
            put_lun(&mut header, lun);
            put32(&mut header, 16, 0x7fff_0000 + tag);
            put32(&mut header, 24, self.cmd_sn);
            put32(&mut header, 28, self.exp_stat_sn);
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
            self.send(&header, &[])?;
            let (answer, data) = self.receive()?;
            if digests && !data.is_empty() {
                self.socket.read_exact(&mut [0; 4])?;
            }
            if answer[0] & 0x3f == 0x21 && answer[3] == 0 {
                return Ok(());
            }
        }
        bail!("LUN {lun} is not ready")
    }

    fn send(&mut self, header: &[u8; BHS], data: &[u8]) -> Result<()> {
        let mut pdu = header.to_vec();
        pdu.extend_from_slice(data);
        pdu.resize(BHS + padded(data.len() as u32), 0);
        Ok(self.socket.write_all(&pdu)?)
    }

    /// One PDU without digests: its header and its data.
    fn receive(&mut self) -> Result<([u8; BHS], Vec<u8>)> {
        let mut header = [0; BHS];
        self.socket.read_exact(&mut header).context("no answer")?;
        let len = get24(&header, 5);
        let mut data = vec![0; padded(len)];
        self.socket.read_exact(&mut data)?;
        data.truncate(len as usize);
        self.max_cmd_sn = get32(&header, 32);
        self.exp_stat_sn = get32(&header, 24).wrapping_add(1);
        Ok((header, data))
    }
}

/// Connects with large buffers.
pub fn connect(portal: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(portal).with_context(|| format!("connect {portal}"))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE))?;
    let options = SockRef::from(&socket);
    options.set_recv_buffer_size(SOCKET_BUFFER)?;
    options.set_send_buffer_size(SOCKET_BUFFER)?;
    Ok(socket)
}

/// The offered value of DataDigest.
fn digest(job: &BlastJob) -> &'static str {
    if job.data_digest { "CRC32C" } else { "None" }
}

fn keys(job: &BlastJob, id: u32) -> Vec<u8> {
    let own = [
        ("InitiatorName", format!("iqn.2026-11.bench:blast{id}")),
        ("TargetName", job.target.clone()),
        ("DataDigest", digest(job).into()),
    ];
    const FIXED: [(&str, &str); 14] = [
        ("SessionType", "Normal"),
        ("HeaderDigest", "None"),
        ("ErrorRecoveryLevel", "0"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "1048576"),
        ("FirstBurstLength", "262144"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("MaxConnections", "1"),
        ("MaxOutstandingR2T", "1"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
    ];
    let own = own.iter().map(|(key, value)| (*key, value.as_str()));
    own.chain(FIXED).flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

/// Puts a LUN into bytes 8 to 15 of a header: peripheral below 256, flat space above (SAM-5 section 4.7).
pub fn put_lun(header: &mut [u8], lun: u16) {
    header[8..10].copy_from_slice(&if lun < 256 { lun } else { 0x4000 | lun }.to_be_bytes());
}
