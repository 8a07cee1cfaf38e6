//! An entry of a submission queue.

/// A command of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeEntry(pub [u8; 64]);

/// Types of SGL descriptors.
const TRANSPORT: u8 = 0x5a;
const IN_CAPSULE: u8 = 0x01;

impl NvmeEntry {
    /// A command without data.
    pub fn new(opcode: u8, namespace: u32) -> NvmeEntry {
        let mut entry = NvmeEntry([0; 64]);
        (entry.0[0], entry.0[1]) = (opcode, 0x40);
        entry.bytes(4, &namespace.to_le_bytes()).on_host(0)
    }

    /// A command of the NVM command set with a range of blocks.
    pub fn blocks(opcode: u8, namespace: u32, lba: u64, blocks: u16) -> NvmeEntry {
        NvmeEntry::new(opcode, namespace).bytes(40, &lba.to_le_bytes()).dword(12, u32::from(blocks - 1))
    }

    /// Read of blocks of 512 bytes.
    pub fn read(namespace: u32, lba: u64, blocks: u16) -> NvmeEntry {
        NvmeEntry::blocks(2, namespace, lba, blocks).on_host(u32::from(blocks) * 512)
    }

    /// Write of blocks of 512 bytes, whose data are asked for.
    pub fn write(namespace: u32, lba: u64, blocks: u16) -> NvmeEntry {
        NvmeEntry::blocks(1, namespace, lba, blocks).on_host(u32::from(blocks) * 512)
    }

    /// Connect of a queue with this number of entries, 0-based.
    pub fn connect(queue: u16, size: u16, keep_alive_ms: u32) -> NvmeEntry {
        let entry = NvmeEntry::new(0x7f, 1).bytes(42, &queue.to_le_bytes()).bytes(44, &size.to_le_bytes());
        entry.dword(12, keep_alive_ms).in_capsule(1024)
    }

    /// Property Get.
    pub fn property(offset: u32, is_long: bool) -> NvmeEntry {
        NvmeEntry::new(0x7f, 4).byte(40, is_long.into()).dword(11, offset)
    }

    /// Property Set of CC.
    pub fn configure(value: u32) -> NvmeEntry {
        NvmeEntry::new(0x7f, 0).dword(11, 0x14).dword(12, value)
    }

    /// Identify.
    pub fn identify(structure: u8, namespace: u32) -> NvmeEntry {
        NvmeEntry::new(6, namespace).dword(10, structure.into()).on_host(4096)
    }

    /// Get Log Page of this many bytes. The event of the page is not retained.
    pub fn log(page: u8, len: u32) -> NvmeEntry {
        NvmeEntry::new(2, u32::MAX).dword(10, u32::from(page) | (len / 4 - 1) << 16).on_host(len)
    }

    /// Set Features.
    pub fn set_feature(feature: u8, value: u32) -> NvmeEntry {
        NvmeEntry::new(9, 0).dword(10, feature.into()).dword(11, value)
    }

    /// Asynchronous Event Request.
    pub fn event() -> NvmeEntry {
        NvmeEntry::new(0x0c, 0)
    }

    /// Sets the identifier.
    pub fn id(self, id: u16) -> NvmeEntry {
        self.bytes(2, &id.to_le_bytes())
    }

    /// Makes it the first (1) or the second (2) of a fused pair.
    pub fn fused(self, half: u8) -> NvmeEntry {
        self.byte(1, 0x40 | half)
    }

    /// Sets a byte.
    pub fn byte(mut self, at: usize, value: u8) -> NvmeEntry {
        self.0[at] = value;
        self
    }

    /// Sets bytes.
    pub fn bytes(mut self, at: usize, value: &[u8]) -> NvmeEntry {
        self.0[at..at + value.len()].copy_from_slice(value);
        self
    }

    /// Sets a command dword.
    pub fn dword(self, number: usize, value: u32) -> NvmeEntry {
        self.bytes(number * 4, &value.to_le_bytes())
    }

    /// Sets the descriptor of the data.
    pub fn sgl(self, kind: u8, address: u64, len: u32) -> NvmeEntry {
        self.bytes(24, &address.to_le_bytes()).bytes(32, &len.to_le_bytes()).byte(39, kind)
    }

    /// The data are moved by data PDUs.
    pub fn on_host(self, len: u32) -> NvmeEntry {
        self.sgl(TRANSPORT, 0, len)
    }

    /// The data are in the capsule.
    pub fn in_capsule(self, len: u32) -> NvmeEntry {
        self.sgl(IN_CAPSULE, 0, len)
    }

    /// Whether the data are in the capsule.
    pub fn is_in_capsule(&self) -> bool {
        self.0[39] == IN_CAPSULE
    }

    /// The identifier.
    pub fn get_id(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }
}
