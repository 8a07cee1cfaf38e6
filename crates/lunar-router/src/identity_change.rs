//! The log event for a path that leads to another logical unit than before, in both modes.

/// The previous and the present identity of the logical unit on a path.
pub(crate) struct IdentityChange<'a> {
    /// The routing instance.
    pub router: &'a str,
    /// The upstream.
    pub upstream: &'a str,
    /// The target.
    pub target: &'a str,
    /// The LUN at the target.
    pub lun: u16,
    /// The path, without secrets.
    pub path: &'a str,
    /// The previous identity, for people.
    pub was: &'a str,
    /// The present identity, for people.
    pub now: &'a str,
}

impl IdentityChange<'_> {
    /// Logs it.
    pub fn log(&self) {
        let IdentityChange { router, upstream, target, lun, path, was, now } = *self;
        tracing::error!(
            name: "upstream.changed",
            router,
            upstream,
            target,
            lun,
            path,
            was,
            now,
            "the path leads to another logical unit and is disabled; hint: restore the old unit, or remove the LUN",
        );
    }
}

/// The name of a logical unit with this identity, for people.
pub(crate) fn name(identity: &[u8]) -> String {
    lunar_initiator::name_of(identity).unwrap_or_else(|| "a logical unit without designators".into())
}
