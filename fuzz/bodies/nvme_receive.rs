//! The framing of NVMe over TCP. The first two bytes choose sender, digests, placement and the size of pieces. The bytes in
//! pieces give the same PDUs as all at once.

use lunar_runtime::nvme::receive::{NvmePduHandler, NvmeReceiver, ReceivedNvmePdu};
use lunar_runtime::{Buf, ReceivedData};
use lunar_wire::nvme::{Digests, NvmePdu, NvmePduError, NvmePduKind};

const MAX_DATA: usize = 1 << 17;

#[derive(Default)]
struct Seen {
    pdus: Vec<(NvmePduKind, Vec<u8>, Vec<u8>, bool)>,
    landing: bool,
}

impl NvmePduHandler for Seen {
    fn place(&mut self, pdu: &NvmePdu, _: &[u8]) -> Option<(Buf, usize)> {
        self.landing.then(|| (Buf::zeroed(pdu.data.len() + 8), 8))
    }

    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }

    fn is_full(&self) -> bool {
        false
    }

    fn take(&mut self, received: ReceivedNvmePdu<'_>) -> Result<bool, NvmePduError> {
        let data = match &received.data {
            ReceivedData::Placed(buf) => buf[8..].to_vec(),
            other => other.bytes().to_vec(),
        };
        assert_eq!(data.len(), received.pdu.data.len());
        self.pdus.push((received.pdu.kind, received.header.to_vec(), data, received.intact));
        Ok(true)
    }
}

pub fn run(input: &[u8]) {
    let Some(([choice, step], bytes)) = input.split_first_chunk() else { return };
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    let (from_host, landing) = (choice & 4 != 0, choice & 8 != 0);
    let receive = |step: usize, landing| {
        let mut receiver = NvmeReceiver::new(from_host, digests, MAX_DATA, Vec::new());
        let mut seen = Seen { landing, ..Seen::default() };
        let fed = bytes.chunks(step).try_for_each(|chunk| receiver.feed(chunk, &mut seen).map(|_| ()));
        (seen.pdus, fed.map_err(|e| e.to_string()))
    };
    let whole = receive(bytes.len().max(1), landing);
    assert_eq!(receive(usize::from(*step).max(1) * 16, !landing), whole);
}
