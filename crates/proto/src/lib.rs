//! iSCSI as machines without I/O: bytes and time come in as arguments, PDUs and decisions go out as values.
#![forbid(unsafe_code)]
