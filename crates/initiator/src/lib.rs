//! The initiator: sessions with iSCSI targets, and their logical units as storage.
#![forbid(unsafe_code)]
