//! SCSI routing instances: several targets with common counters and limits.

use crate::LoginError;
use lunar_runtime::latency::LatencyCounter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::SystemTime;

/// A SCSI routing instance. It outlives reloads of the configuration.
#[derive(Debug)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// The time at which it started.
    pub started: SystemTime,
    /// Number of logins that succeeded.
    pub logins_accepted: AtomicU64,
    /// Number of sessions that are logged in.
    pub logins_active: AtomicUsize,
    /// Number of logins rejected because of their target: no access rule matches, the target does not exist, or it
    /// accepts no logins now.
    pub target_access_failures: AtomicU64,
    /// Number of logins that CHAP rejected.
    pub authentication_failures: AtomicU64,
    /// Maximum number of sessions.
    pub max_sessions: AtomicUsize,
    /// Whether it rejects logins.
    pub draining: AtomicBool,
    /// The time from the arrival of a command to its execution: waiting for data, order and lock.
    pub front: LatencyCounter,
}

impl Instance {
    /// An instance that starts now.
    pub fn new(name: impl Into<String>) -> Instance {
        Instance {
            name: name.into(),
            started: SystemTime::now(),
            logins_accepted: AtomicU64::new(0),
            logins_active: AtomicUsize::new(0),
            target_access_failures: AtomicU64::new(0),
            authentication_failures: AtomicU64::new(0),
            max_sessions: AtomicUsize::new(usize::MAX),
            draining: AtomicBool::new(false),
            front: LatencyCounter::default(),
        }
    }
}

impl Instance {
    /// Counts a rejected login.
    pub(crate) fn refused(&self, error: LoginError) {
        match error {
            LoginError::AuthenticationFailed => &self.authentication_failures,
            LoginError::NotAllowed
            | LoginError::TargetNotFound
            | LoginError::NotServing
            | LoginError::OutOfResources => &self.target_access_failures,
            LoginError::DiscoveryDisabled | LoginError::TooManyConnections | LoginError::NoSuchSession => {
                return;
            }
        }
        .fetch_add(1, Relaxed);
    }

    /// Checks that a login may enter after `leaving` sessions have ended.
    pub(crate) fn admits(&self, leaving: usize) -> Result<(), LoginError> {
        if self.draining.load(Relaxed) {
            return Err(LoginError::NotServing);
        }
        let staying = self.logins_active.load(SeqCst).saturating_sub(leaving);
        let has_room = staying < self.max_sessions.load(Relaxed);
        if has_room { Ok(()) } else { Err(LoginError::OutOfResources) }
    }
}

/// A session of an instance. Dropping it releases its place.
#[derive(Debug)]
pub struct InstanceSession {
    instance: Arc<Instance>,
    has_left: AtomicBool,
}

impl InstanceSession {
    /// Counts a login.
    ///
    /// # Errors
    /// The instance has reached its maximum number of sessions, or rejects logins.
    pub fn enter(instance: &Arc<Instance>) -> Result<InstanceSession, LoginError> {
        if instance.draining.load(Relaxed) {
            return Err(LoginError::NotServing);
        }
        let max = instance.max_sessions.load(Relaxed);
        let admitted = |active| (active < max).then_some(active + 1);
        let entered = instance.logins_active.fetch_update(SeqCst, SeqCst, admitted);
        entered.map_err(|_| LoginError::OutOfResources)?;
        instance.logins_accepted.fetch_add(1, Relaxed);
        Ok(InstanceSession { instance: instance.clone(), has_left: AtomicBool::new(false) })
    }

    /// The instance.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Releases the place.
    pub fn leave(&self) {
        if !self.has_left.swap(true, SeqCst) {
            self.instance.logins_active.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for InstanceSession {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_logins_are_counted_by_cause() {
        let instance = Instance::new("r1");
        for error in [
            LoginError::NotAllowed,
            LoginError::TargetNotFound,
            LoginError::NotServing,
            LoginError::OutOfResources,
            LoginError::AuthenticationFailed,
            LoginError::NoSuchSession,
        ] {
            instance.refused(error);
        }
        assert_eq!(instance.target_access_failures.load(Relaxed), 4);
        assert_eq!(instance.authentication_failures.load(Relaxed), 1);
    }

    #[test]
    fn sessions_are_counted_and_bounded() {
        let instance = Arc::new(Instance::new("r1"));
        instance.max_sessions.store(1, Relaxed);
        let instance_session = InstanceSession::enter(&instance).expect("the first");
        assert_eq!(InstanceSession::enter(&instance).err(), Some(LoginError::OutOfResources));
        instance_session.leave();
        drop(instance_session);
        assert_eq!(instance.logins_active.load(Relaxed), 0);
        assert!(InstanceSession::enter(&instance).is_ok());
        instance.draining.store(true, Relaxed);
        assert_eq!(InstanceSession::enter(&instance).err(), Some(LoginError::NotServing));
        assert_eq!(instance.logins_accepted.load(Relaxed), 2);
        assert_eq!(instance.logins_active.load(Relaxed), 0);
    }
}
