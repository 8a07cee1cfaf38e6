//! The admin queue: enables the controller as Linux does, and reads what the load needs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::job::BlastJob;
use crate::nvme_pdu::{get32, put};
use crate::nvme_queue::{NvmeQueue, QueueId, TRANSPORT_SGL, fabrics, sqe};

/// Properties.
const CAP: u32 = 0x00;
const VS: u32 = 0x08;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
/// CC of a disabled controller: sizes of queue entries, and a normal shutdown that is not requested.
const DISABLED: u64 = 0x0046_0000;
/// The least CAP.TO, the time to become ready.
const READY: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(10);
/// Entries of an admin queue, 0-based.
const ADMIN_SIZE: u16 = 31;
const NEW_CONTROLLER: u16 = 0xffff;
const IDENTIFY: u32 = 4096;
/// LBADS of blocks of 512 bytes.
const BLOCK_SHIFT: u8 = 9;

/// An enabled controller.
#[derive(Debug)]
pub struct NvmeController {
    /// The load
    pub job: Arc<BlastJob>,
    /// The most data of a command capsule, in bytes
    pub in_capsule: u32,
    admin: NvmeQueue,
    host: u32,
    id: u16,
}

impl NvmeController {
    /// Connects host number `host` to a new controller. Without a keep-alive time, an idle queue stays.
    pub fn open(job: &Arc<BlastJob>, host: u32) -> Result<NvmeController> {
        let id = QueueId { host, queue: 0, controller: NEW_CONTROLLER, size: ADMIN_SIZE };
        let (admin, id) = NvmeQueue::open(job, id)?;
        let mut controller = NvmeController { job: Arc::clone(job), in_capsule: 0, admin, host, id };
        let capabilities = controller.enable()?;
        let entries = (capabilities & 0xffff) as u32;
        ensure!(job.depth <= entries, "the target has queues of {entries} commands");
        controller.identify_controller()?;
        controller.request_queues(job.queues)?;
        for lun in job.lun..job.lun + job.luns {
            controller.identify_namespace(u32::from(lun) + 1)?;
        }
        Ok(controller)
    }

    /// Connects an I/O queue for the depth of the load.
    pub fn open_queue(&self, queue: u16) -> Result<NvmeQueue> {
        let size = self.job.depth as u16;
        let id = QueueId { host: self.host, queue, controller: self.id, size };
        Ok(NvmeQueue::open(&self.job, id)?.0)
    }

    /// Enables the controller; returns CAP.
    fn enable(&mut self) -> Result<u64> {
        let several_sets = self.property(CAP)? >> 43 & 1 != 0;
        let configuration = DISABLED | if several_sets { 6 << 4 } else { 0 };
        self.set_property(CC, configuration)?;
        let capabilities = self.property(CAP)?;
        self.set_property(CC, configuration | 1)?;
        let end = Instant::now() + READY * (capabilities >> 24 & 0xff) as u32;
        while self.property(CSTS)? & 1 == 0 {
            ensure!(Instant::now() < end, "the controller is not ready");
            std::thread::sleep(AGAIN);
        }
        self.property(VS)?;
        Ok(capabilities)
    }

    fn property(&mut self, offset: u32) -> Result<u64> {
        let mut sqe = fabrics(4);
        sqe[40] = u8::from(offset == CAP); // 8 bytes
        put(&mut sqe, 44, offset.to_le_bytes());
        Ok(self.admin.execute(sqe, &[])?.0)
    }

    fn set_property(&mut self, offset: u32, value: u64) -> Result<()> {
        let mut sqe = fabrics(0);
        put(&mut sqe, 44, offset.to_le_bytes());
        put(&mut sqe, 48, value.to_le_bytes());
        self.admin.execute(sqe, &[]).map(drop)
    }

    fn identify_controller(&mut self) -> Result<()> {
        let data = self.identify(0, 1)?;
        let most = 4096_u64.checked_shl(data[77].into()).filter(|_| data[77] > 0);
        let bytes = self.job.bytes;
        ensure!(most.is_none_or(|most| u64::from(bytes) <= most), "MDTS is below {bytes} bytes");
        self.in_capsule = get32(&data, 1792).saturating_mul(16).saturating_sub(64);
        Ok(())
    }

    fn identify_namespace(&mut self, namespace: u32) -> Result<()> {
        let data = self.identify(namespace, 0)?;
        let format = 128 + 4 * usize::from(data[26] & 0xf);
        ensure!(data[..8] != [0; 8], "there is no namespace {namespace}");
        ensure!(data[format + 2] == BLOCK_SHIFT, "namespace {namespace} has no blocks of 512 bytes");
        Ok(())
    }

    fn identify(&mut self, namespace: u32, kind: u8) -> Result<Vec<u8>> {
        let mut sqe = sqe(0x06, namespace, IDENTIFY, TRANSPORT_SGL);
        sqe[40] = kind;
        let (_, data) = self.admin.execute(sqe, &[])?;
        ensure!(data.len() == IDENTIFY as usize, "Identify returned {} bytes", data.len());
        Ok(data)
    }

    /// Set Features, Number of Queues.
    fn request_queues(&mut self, queues: u32) -> Result<()> {
        let mut sqe = sqe(0x09, 0, 0, TRANSPORT_SGL);
        sqe[40] = 0x07;
        put(&mut sqe, 44, ((queues - 1) | (queues - 1) << 16).to_le_bytes());
        let (granted, _) = self.admin.execute(sqe, &[])?;
        let granted = (granted & 0xffff).min(granted >> 16 & 0xffff) + 1;
        ensure!(granted >= u64::from(queues), "the target grants {granted} queues");
        Ok(())
    }
}
