//! An image whose client the cluster has fenced is opened again with a new client.

use super::image::Image;
use super::presence::Presence;
use super::{RbdBackend, RbdLocation, timed_out};
use crate::{OpenError, locked};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

impl RbdBackend {
    /// Whether the cluster has fenced the client of the image: an operation has failed with `ESHUTDOWN`. It stays so
    /// until the image is opened again.
    pub fn is_fenced(&self) -> bool {
        self.image().client().is_fenced()
    }

    /// Opens the image with a new client, and replaces the old one. Objects and watches of the old client stay fenced.
    /// It waits for the cluster.
    ///
    /// # Errors
    /// As [`crate::open`]; the old client stays then.
    pub fn reopen(&self) -> Result<(), OpenError> {
        reopen(&self.location, &self.image, &self.presence)
    }

    /// The error of an operation of a fenced client. An image without shared objects is opened again.
    pub(super) fn fenced(&self) -> io::Error {
        if self.is_shared.load(Ordering::SeqCst) {
            return rustix::io::Errno::SHUTDOWN.into();
        }
        self.begin_reopen();
        timed_out()
    }

    /// Opens the image with a new client on a thread. Until then, operations of the old one fail.
    fn begin_reopen(&self) {
        {
            let mut reopening = locked(&self.reopening);
            // Operations of a client that was replaced may end late.
            if *reopening || !self.is_fenced() {
                return;
            }
            *reopening = true;
        }
        let (location, place, reopening, presence) =
            (self.location.clone(), self.image.clone(), self.reopening.clone(), self.presence.clone());
        tracing::error!(
            "{location}: the cluster has fenced this client (blocklist); opening the image again"
        );
        let work = move || {
            match reopen(&location, &place, &presence) {
                Ok(()) => tracing::info!("{location}: opened again with a new client"),
                Err(e) => tracing::error!("{location}: cannot be opened again: {}; hint: {}", e.what, e.hint),
            }
            *locked(&reopening) = false;
        };
        // Without a thread, the next operation tries again.
        if std::thread::Builder::new().name("rbd-open".into()).spawn(work).is_err() {
            *locked(&self.reopening) = false;
        }
    }
}

fn reopen(location: &RbdLocation, place: &RwLock<Arc<Image>>, presence: &Presence) -> Result<(), OpenError> {
    let former = place.read().unwrap_or_else(PoisonError::into_inner).clone();
    let image =
        Image::open(location, former.read_only, None).and_then(|image| same(location, &former, image));
    if image.as_ref().is_err_and(|e| e.kind == io::ErrorKind::NotFound) {
        presence.end(location);
    }
    *place.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(image?);
    Ok(())
}

/// The image, unless it is another one that has the name of the former.
fn same(location: &RbdLocation, former: &Image, image: Image) -> Result<Image, OpenError> {
    if image.identity == former.identity {
        return Ok(image);
    }
    let what = format!("another image has its name: {} instead of {}", image.identity, former.identity);
    Err(OpenError::new(location.to_string(), what, "restart the server to serve the other one")
        .of(io::ErrorKind::NotFound))
}
