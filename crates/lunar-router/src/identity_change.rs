//! The log event for a path that leads to another logical unit than before, in either mode.

/// What a path leads to now, and what it led to.
pub(crate) struct IdentityChange<'a> {
    /// The routing instance.
    pub router: &'a str,
    /// The upstream.
    pub upstream: &'a str,
    /// The target there.
    pub target: &'a str,
    /// LUN there.
    pub lun: u16,
    /// The path, without secrets.
    pub path: &'a str,
    /// What it was, for people.
    pub was: &'a str,
    /// What it is now, for people.
    pub now: &'a str,
}

impl IdentityChange<'_> {
    /// Logs it.
    pub fn log(&self) {
        let IdentityChange { router, upstream, target, lun, path, was, now } = *self;
        tracing::error!(
            router,
            upstream,
            target,
            lun,
            path,
            was,
            now,
            "the path leads to another logical unit and is disabled; hint: restore the previous one, or remove the LUN",
        );
    }
}

/// What a logical unit of this identity is called, for people.
pub(crate) fn name(identity: &[u8]) -> String {
    lunar_initiator::name_of(identity).unwrap_or_else(|| "a logical unit without designators".into())
}
