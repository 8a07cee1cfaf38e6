//! `Debug` of the handles: the target and the portal, without the state of the session.

use super::{Session, WeakSession};
use std::fmt;

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, portal) = self.destination();
        f.debug_struct("Session").field("target", &target).field("portal", &portal).finish_non_exhaustive()
    }
}

impl fmt::Debug for WeakSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakSession")
    }
}

#[cfg(test)]
mod tests {
    use crate::blocking::BlockingLun;
    use crate::multipath::Multipath;
    use crate::{Batch, Discovery, ExtendedCopy, Lun, Pending, Session};
    use std::fmt::Debug;

    /// Users derive `Debug` for what holds these handles.
    #[test]
    fn handles_implement_debug() {
        fn is_debug<T: Debug>() {}
        is_debug::<(Session, Lun, Batch, Pending, Discovery, ExtendedCopy, Multipath, BlockingLun)>();
    }
}
