//! The commands of `lunar info`, in the order of the report.

use super::pages::{self, Fields};
use crate::exit::Failure;
use crate::open_lun::{OpenLun, is_rejected};
use crate::tree::{Node, read};
use lunar_initiator::{Error, ErrorCode, Url};
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::inquiry::Capacity;
use lunar_wire::scsi::vpd::Designator;
use lunar_wire::scsi::{inquiry, pr, report, vpd};

/// ALLOCATION LENGTH where the CDB has 16 bits for it. A device that uses only the low eight bits returns 252 bytes.
const ALLOCATION_LENGTH: u16 = 0x0ffc;
/// ALLOCATION LENGTH where the CDB has 32 bits for it.
const LONG_ALLOCATION_LENGTH: u32 = 64 << 10;
/// Limit of GET LBA STATUS commands: of a medium with more extents, only a part is counted.
const MAX_LBA_STATUS_COMMANDS: usize = 64;
/// Limit of log pages.
const MAX_LOG_PAGES: usize = 64;

/// The report about a logical unit.
#[derive(Default)]
pub struct LuReport {
    /// Decoded responses.
    pub fields: Fields,
    /// Raw responses, with the names of their commands.
    pub answers: Vec<(String, Vec<u8>)>,
    /// Commands that failed, and why.
    pub errors: Vec<String>,
}

struct LuReader {
    lu: OpenLun,
    report: LuReport,
}

/// Reads one VPD page.
pub async fn page(url: &Url, code: u8) -> Result<LuReport, Failure> {
    let mut reader = start(url).await?;
    let page = reader.vpd(code).await;
    reader.lu.close().await;
    if let Some((key, node)) = page? {
        reader.report.fields.push((key, node));
    }
    Ok(reader.report)
}

/// Reads all pages; `commands`: supported commands and task management functions, too.
pub async fn all(url: &Url, commands: bool) -> Result<LuReport, Failure> {
    let mut reader = start(url).await?;
    let ended = reader.all(commands).await;
    reader.lu.close().await;
    ended?;
    Ok(reader.report)
}

async fn start(url: &Url) -> Result<LuReader, Failure> {
    Ok(LuReader { lu: OpenLun::open(url, None).await?, report: LuReport::default() })
}

impl LuReader {
    /// Sends a command. None: the logical unit rejected it. ILLEGAL REQUEST only means that it does not support the
    /// command, and is no error.
    async fn query(&mut self, what: &str, cdb: Cdb, len: usize) -> Result<Option<Vec<u8>>, Error> {
        match self.lu.read(cdb, len).await {
            Ok(bytes) => {
                self.report.answers.push((what.to_owned(), bytes.clone()));
                Ok(Some(bytes))
            }
            Err(e) if is_rejected(&e) => {
                if e.sense.is_none_or(|sense| sense.key != 5) {
                    self.report.errors.push(format!("{what}: {e}"));
                }
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn add(&mut self, name: &str, node: Node) {
        self.report.fields.push((name.to_owned(), node));
    }

    async fn all(&mut self, commands: bool) -> Result<(), Error> {
        let info = self.lu.session.info();
        self.add("target", Node::text(info.target));
        self.add("portal", Node::text(info.portal.to_string()));
        self.add("lun", Node::number(self.lu.number));
        self.standard().await?;
        self.capacity().await?;
        let ours = self.pages().await?;
        self.modes().await?;
        if let Some(b) = self
            .query(
                "target port groups",
                cdb::report_target_port_groups(LONG_ALLOCATION_LENGTH),
                LONG_ALLOCATION_LENGTH as usize,
            )
            .await?
        {
            self.add("target_port_groups", pages::groups(&b, ours));
        }
        self.reservations().await?;
        self.logs().await?;
        if commands {
            self.supported().await?;
        }
        Ok(())
    }

    async fn standard(&mut self) -> Result<(), Error> {
        let Some(b) = self.query("INQUIRY", cdb::inquiry(None, 252), 252).await? else { return Ok(()) };
        // PERIPHERAL QUALIFIER 011b (SPC-5 section 6.6.2): no device can be there.
        if inquiry::qualifier(&b).is_none_or(|qualifier| qualifier == 3) {
            let what = format!("there is no LUN {}", self.lu.number);
            return Err(Error::new(ErrorCode::NotFound, what));
        }
        self.add("inquiry", Node::Map(pages::standard(&b)));
        Ok(())
    }

    async fn capacity(&mut self) -> Result<(), Error> {
        let long = self.query("READ CAPACITY(16)", cdb::read_capacity_16(32), 32).await?.unwrap_or_default();
        let (capacity, mut fields) = match Capacity::decode_16(&long) {
            Some(capacity) => (capacity, read(inquiry::CAPACITY, &long)),
            None => {
                let short = self.query("READ CAPACITY(10)", cdb::read_capacity_10(), 8).await?;
                let Some(capacity) = short.as_deref().and_then(Capacity::decode_10) else { return Ok(()) };
                (capacity, Fields::new())
            }
        };
        let (blocks, size, thin) = (capacity.blocks(), capacity.block_size, capacity.thin);
        let bytes = blocks.saturating_mul(size.into());
        let sizes = [("bytes", Node::number(bytes)), ("size", Node::text(lunar_proto::size::show(bytes)))];
        let sizes = sizes.map(|(name, node)| (name.to_owned(), node));
        fields.splice(0..0, sizes);
        if thin && let Some((mapped, whole)) = self.mapped(blocks).await? {
            let mapped = mapped.saturating_mul(size.into());
            fields.push(("mapped_bytes".into(), Node::number(mapped)));
            fields.push(("mapped_is_exact".into(), Node::flag(whole)));
        }
        self.add("capacity", Node::Map(fields));
        Ok(())
    }

    /// The number of mapped blocks, and whether all blocks were examined.
    async fn mapped(&mut self, blocks: u64) -> Result<Option<(u64, bool)>, Error> {
        let (mut lba, mut mapped) = (0, 0u64);
        for _ in 0..MAX_LBA_STATUS_COMMANDS {
            let cdb = cdb::get_lba_status(lba, ALLOCATION_LENGTH.into());
            let b = match self.lu.read(cdb, ALLOCATION_LENGTH.into()).await {
                Ok(b) => b,
                Err(e) if is_rejected(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
            let before = lba;
            for extent in report::extents(&b).take_while(|extent| extent.blocks > 0) {
                let end = extent.lba.saturating_add(extent.blocks.into()).min(blocks);
                if !extent.is_deallocated() {
                    mapped += end.saturating_sub(lba.max(extent.lba));
                }
                lba = lba.max(end);
            }
            if lba >= blocks || lba == before {
                break;
            }
        }
        Ok(Some((mapped, lba >= blocks)))
    }

    async fn vpd(&mut self, code: u8) -> Result<Option<(String, Node)>, Error> {
        let what = format!("VPD page {code:02x}h");
        let answer =
            self.query(&what, cdb::inquiry(Some(code), ALLOCATION_LENGTH), ALLOCATION_LENGTH.into()).await?;
        // A device without VPD may answer with standard data.
        let answer = answer.filter(|b| vpd::code(b) == Some(code));
        Ok(answer.map(|b| (pages::key(code, 0), Node::Map(pages::vpd_page(code, &b)))))
    }

    /// Reads all VPD pages. Returns the target port group of the port in use.
    async fn pages(&mut self) -> Result<Option<u16>, Error> {
        let list = self
            .query("VPD page 00h", cdb::inquiry(Some(0), ALLOCATION_LENGTH), ALLOCATION_LENGTH.into())
            .await?
            .unwrap_or_default();
        let mut fields = Fields::new();
        let mut ours = None;
        for code in vpd::body(&list).iter().copied().filter(|code| *code != 0) {
            fields.extend(self.vpd(code).await?);
            if let Some((_, b)) = self.report.answers.last().filter(|_| code == vpd::IDENTIFICATION) {
                let mut groups = vpd::designators(b).filter(|d| d.kind == Designator::TARGET_PORT_GROUP);
                ours = groups.find_map(|d| d.number());
            }
        }
        self.add("vpd", Node::Map(fields));
        Ok(ours)
    }

    /// Reads all mode pages, with subpages if the logical unit supports them.
    async fn modes(&mut self) -> Result<(), Error> {
        for subpage in [0xff, 0] {
            let cdb = cdb::mode_sense_10(0x3f, subpage, ALLOCATION_LENGTH);
            if let Some(b) = self.query("MODE SENSE(10)", cdb, ALLOCATION_LENGTH.into()).await? {
                self.add("mode", Node::Map(pages::mode_pages(&b)));
                break;
            }
        }
        Ok(())
    }

    async fn reservations(&mut self) -> Result<(), Error> {
        let mut fields = Fields::new();
        for (action, what) in [(0, "READ KEYS"), (1, "READ RESERVATION"), (2, "REPORT CAPABILITIES")] {
            let cdb = cdb::persistent_reserve_in(action, ALLOCATION_LENGTH);
            let Some(b) = self.query(what, cdb, ALLOCATION_LENGTH.into()).await? else { continue };
            match action {
                0 => fields.extend(pages::keys(&b)),
                1 => fields.extend(pages::reservation(&b)),
                _ => fields.push(("capabilities".into(), Node::Map(read(pr::CAPABILITIES, &b)))),
            }
        }
        let cdb = cdb::persistent_reserve_in(3, u16::MAX);
        if let Some(b) = self.query("READ FULL STATUS", cdb, u16::MAX.into()).await? {
            fields.push(("registrations".into(), pages::registrations(&b)));
        }
        if !fields.is_empty() {
            self.add("reservations", Node::Map(fields));
        }
        Ok(())
    }

    async fn logs(&mut self) -> Result<(), Error> {
        let Some(list) = self
            .query("log page 00h", cdb::log_sense(0, ALLOCATION_LENGTH), ALLOCATION_LENGTH.into())
            .await?
        else {
            return Ok(());
        };
        let mut fields = Fields::new();
        for code in
            vpd::body(&list).iter().copied().filter(|code| (1..0x40).contains(code)).take(MAX_LOG_PAGES)
        {
            let what = format!("log page {code:02x}h");
            if let Some(b) =
                self.query(&what, cdb::log_sense(code, ALLOCATION_LENGTH), ALLOCATION_LENGTH.into()).await?
            {
                fields.push((pages::key(code, 0), Node::Map(pages::log_page(code, &b))));
            }
        }
        self.add("logs", Node::Map(fields));
        Ok(())
    }

    async fn supported(&mut self) -> Result<(), Error> {
        let cdb = cdb::report_supported_operation_codes(LONG_ALLOCATION_LENGTH);
        if let Some(b) = self.query("supported operation codes", cdb, LONG_ALLOCATION_LENGTH as usize).await?
        {
            self.add("commands", pages::commands(&b));
        }
        let cdb = cdb::report_task_management(16);
        if let Some(b) = self.query("supported task management functions", cdb, 16).await? {
            self.add("task_management", Node::Map(read(report::FUNCTIONS, &b)));
        }
        Ok(())
    }
}
