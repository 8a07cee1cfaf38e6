//! The transfers and the requests for data of an I_T nexus.

/// Bits of a transfer tag that select one of the open transfers of a task.
const INDEX_BITS: u32 = 5;
/// The upper bits of transfer tags stay below this, because a tag with all bits set is reserved.
const BASES: u32 = u32::MAX >> INDEX_BITS;

/// The upper bits of the transfer tags of a task.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransferBase(u32);

impl TransferBase {
    /// The tag of an open transfer.
    pub fn tag(self, index: u16) -> u32 {
        self.0 << INDEX_BITS | u32::from(index)
    }

    /// The index of the open transfer that a tag selects. Some(None): unsolicited data. None: the transfer does not
    /// belong to this task.
    pub fn index_of(self, transfer: Option<u32>) -> Option<Option<u16>> {
        let Some(tag) = transfer else { return Some(None) };
        (tag >> INDEX_BITS == self.0).then_some(Some((tag & ((1 << INDEX_BITS) - 1)) as u16))
    }
}

/// The transfers and requests of all tasks so far.
#[derive(Default)]
pub struct DataOutRequests {
    latest_base: TransferBase,
    /// Number of requests that were sent.
    count: u64,
    /// Whether the timer for outstanding data is running.
    is_timer_running: bool,
}

impl DataOutRequests {
    /// The tags of one more task.
    pub fn next_base(&mut self) -> TransferBase {
        self.latest_base = TransferBase((self.latest_base.0 + 1) % BASES);
        self.latest_base
    }

    /// Whether a tag may belong to a task that has ended.
    pub fn may_have_begun(&self, transfer: u32) -> bool {
        transfer >> INDEX_BITS <= self.latest_base.0
    }

    /// Counts one more request, and returns its number.
    pub fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The number of the latest request.
    pub fn latest_number(&self) -> u64 {
        self.count
    }

    /// Whether the timer for outstanding data must be started. It counts as running from now on.
    pub fn needs_timer(&mut self) -> bool {
        !std::mem::replace(&mut self.is_timer_running, true)
    }

    /// Records that the timer stops.
    pub fn stop_timer(&mut self) {
        self.is_timer_running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_tag_selects_open_transfer_of_task() {
        let (one, other) = (TransferBase(7), TransferBase(8));
        assert_eq!(one.index_of(None), Some(None));
        assert_eq!(one.index_of(Some(one.tag(3))), Some(Some(3)));
        assert_eq!(one.index_of(Some(other.tag(3))), None);
    }

    #[test]
    fn tags_of_later_transfers_have_not_begun() {
        let mut requests = DataOutRequests::default();
        let [first, second] = [(); 2].map(|()| requests.next_base());
        assert!(requests.may_have_begun(first.tag(0)) && requests.may_have_begun(second.tag(31)));
        assert!(!requests.may_have_begun(TransferBase(3).tag(0)));
    }
}
