//! The core-local part of a controller: its queues, and the connections that follow each other.

use super::association::{Association, SubsystemAddress, associate};
use super::command::NvmeCommand;
use super::controller_info::ControllerInfo;
use super::host_queue::HostQueue;
use super::io_queues::IoQueues;
use super::namespace_identity::{self, NamespaceIdentity};
use super::options::NvmeOptions;
use super::status::closed;
use crate::connect::login_timed_out;
use crate::session::Listeners;
use crate::{Error, ErrorCode, time_limit, waits};
use event_listener::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A namespace in use, whose identity must not change.
#[derive(Clone)]
pub struct PinnedNamespace {
    id: u32,
    identity: NamespaceIdentity,
    users: usize,
}

/// A controller on its core.
pub struct LocalController {
    /// Its place.
    pub address: SubsystemAddress,
    /// The options.
    pub options: NvmeOptions,
    /// The admin queue of the current association.
    pub admin: RefCell<Option<Rc<HostQueue>>>,
    /// The I/O queues, which outlive their connections.
    pub io: Arc<IoQueues>,
    /// The information about the controller, shared with its handles.
    pub info: Arc<Mutex<ControllerInfo>>,
    /// The namespaces in use.
    pub pinned: RefCell<Vec<PinnedNamespace>>,
    /// Those who want to know of events.
    pub listeners: Arc<Listeners>,
    /// When the connection was lost.
    pub lost_at: Cell<Option<Instant>>,
    /// Whether the controller must end.
    pub closing: Cell<bool>,
    /// Whether it has ended.
    pub over: Cell<bool>,
    /// Notified when one of the two changes.
    pub bell: Event,
}

impl LocalController {
    /// A controller without a connection.
    pub fn new(address: SubsystemAddress, options: NvmeOptions, io: Arc<IoQueues>) -> Rc<LocalController> {
        let info = ControllerInfo::new(&address);
        Rc::new(LocalController {
            io,
            address,
            options: options.identified(),
            admin: RefCell::default(),
            info: Arc::new(Mutex::new(info)),
            pinned: RefCell::default(),
            listeners: Arc::default(),
            lost_at: Cell::new(None),
            closing: Cell::new(false),
            over: Cell::new(false),
            bell: Event::new(),
        })
    }

    /// Makes an association and connects the I/O queues, within the login timeout. Commands that wait are sent.
    ///
    /// # Errors
    /// When the controller is unreachable or refuses this host; [`ErrorCode::IdentityMismatch`] when a namespace is another
    /// one now.
    pub async fn establish(&self) -> Result<Association, Error> {
        let limit = self.options.timeouts.login;
        let _wait = waits::on(format!("the connection to {}", self.address.portal));
        let tried = time_limit::within(limit, Box::pin(self.attempt())).await;
        let tried = tried.unwrap_or_else(|| Err(login_timed_out(limit)));
        tried.map_err(|e| {
            self.io.reset(&e);
            e.during(format!("connecting to {}", self.address.portal))
        })
    }

    async fn attempt(&self) -> Result<Association, Error> {
        // The queues of an attempt that was given up may still have to end.
        self.io.disconnected().await;
        let mut association = associate(&self.address, &self.options).await?;
        if association.is_discovery() {
            let what = format!("{} is a discovery controller, and has no namespaces", self.address.subsystem);
            return Err(Error::new(ErrorCode::InvalidArgument, what)
                .with_hint("name a subsystem: lunar discover lists those of a discovery service"));
        }
        let io_queues = self.io.connect(&mut association, &self.address, &self.options).await?;
        self.check_namespaces(&association).await?;
        // The owner of a command that is too long now learns the new limit from there.
        self.install(&association, io_queues);
        self.io.admit(io_queues, &association, &self.options);
        Ok(association)
    }

    /// Checks that the namespaces in use are still the same. Otherwise writes would go to another disk. A namespace that is
    /// absent blocks no other one. Commands wait if none is there: the target may have just started.
    async fn check_namespaces(&self, association: &Association) -> Result<(), Error> {
        let pinned = self.pinned.borrow().clone();
        let (all, mut absent) = (pinned.len(), Vec::new());
        for PinnedNamespace { id, identity, .. } in pinned {
            let execute = |command: NvmeCommand| association.admin.call(command.once());
            let found = match namespace_identity::read(execute, id).await {
                Ok(properties) => properties.identity,
                Err(e) if e.code == ErrorCode::NotFound => {
                    absent.push(e);
                    continue;
                }
                Err(e) => return Err(e),
            };
            if found != identity {
                let what = format!("namespace {id} {}", identity.change_to(&found));
                return Err(Error::new(ErrorCode::IdentityMismatch, what)
                    .with_hint("close the namespace, and open the new one"));
            }
        }
        if absent.len() == all
            && let Some(e) = absent.pop()
        {
            return Err(e);
        }
        absent.iter().for_each(|e| tracing::warn!(subsystem = %self.address.subsystem, "{e}"));
        Ok(())
    }

    fn install(&self, association: &Association, io_queues: u16) {
        *self.admin.borrow_mut() = Some(association.admin.clone());
        let is_again = self.lost_at.take().is_some();
        let mut info = lock(&self.info);
        info.set(association, &self.options, io_queues);
        info.recoveries += u32::from(is_again);
        drop(info);
        if is_again {
            self.listeners.notify(&crate::Event::Connected);
        }
    }

    /// Adds a user of a namespace, and pins it to this identity. Replaces an earlier one.
    pub fn pin(&self, id: u32, identity: NamespaceIdentity) {
        let mut pinned = self.pinned.borrow_mut();
        match pinned.iter_mut().find(|pinned| pinned.id == id) {
            Some(pinned) => (pinned.identity, pinned.users) = (identity, pinned.users + 1),
            None => pinned.push(PinnedNamespace { id, identity, users: 1 }),
        }
    }

    /// Removes a user of a namespace, which stays pinned until its last user has gone.
    pub fn unpin(&self, id: u32) {
        self.pinned.borrow_mut().retain_mut(|pinned| {
            pinned.users -= usize::from(pinned.id == id);
            pinned.users > 0
        });
    }

    /// Waits until the controller must end.
    pub async fn must_close(&self) -> Error {
        loop {
            let rung = self.bell.listen();
            if self.closing.get() {
                return closed();
            }
            rung.await;
        }
    }

    /// Ends the controller, and waits for that.
    pub async fn close(&self) {
        self.closing.set(true);
        self.bell.notify(usize::MAX);
        loop {
            let rung = self.bell.listen();
            if self.over.get() {
                return;
            }
            rung.await;
        }
    }
}

/// The event loop of the controller may end before it: the other queues must not wait for the next connection.
impl Drop for LocalController {
    fn drop(&mut self) {
        self.io.reset(&closed());
        self.io.refuse(&closed());
    }
}

/// Locks, whatever a panicked holder left: each value is whole at any time.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
