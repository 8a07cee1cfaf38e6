//! The media of logical units.

use super::filters::filtered;
use super::reusable_media::ReusableMedia;
use super::{UnitName, Units, cannot_open, medium_history};
use crate::config::{LunConfig, Share, is_shared};
use crate::{Diagnostic, hints};
use lunar_block::filter::RateLimit;
use lunar_block::{Backend, BackendKind, BackendSpec, RbdBackend, SizeRule};
use lunar_proto::size;
use lunar_router::routes::RoutedLu;
use lunar_router::with_rate_limit;
use lunar_scsi::PassthroughMode;
use lunar_target::PassthroughLu;
use std::sync::{Arc, PoisonError};

/// The backend or passthrough of a logical unit.
#[derive(Clone)]
pub(super) struct Medium {
    pub(super) blocks: Arc<dyn Backend>,
    /// The passthrough; if set, the medium has no blocks.
    pub(super) commands: Option<(Arc<dyn PassthroughLu>, PassthroughMode)>,
    /// The rate limit that all LUNs of its routing instance share.
    pub(super) rate: Option<Arc<RateLimit>>,
    /// The block size that hosts see, if the medium determines it; None: as defined.
    pub(super) block_size: Option<u32>,
    /// The blocks, if other gateways serve them, too.
    pub(super) shared: Option<Arc<RbdBackend>>,
    /// Pending until it is written.
    pub(super) record: Option<medium_history::PendingRecord>,
}

impl Medium {
    pub(super) fn of(rate: Option<Arc<RateLimit>>, opened: RoutedLu) -> Medium {
        let (blocks, commands) = match opened {
            RoutedLu::Blocks(blocks) => (blocks, None),
            RoutedLu::Commands(passthrough, passes) => (lunar_block::nothing(), Some((passthrough, passes))),
        };
        Medium { blocks, commands, rate, block_size: None, shared: None, record: None }
    }

    /// The passthrough, wrapped in its rate limit.
    pub(super) fn passthrough(&self) -> Option<Arc<dyn PassthroughLu>> {
        let (passthrough, _) = self.commands.as_ref()?;
        Some(match &self.rate {
            Some(rate) => with_rate_limit(passthrough.clone(), rate.clone()),
            None => passthrough.clone(),
        })
    }

    /// The blocks, wrapped in the filters of a LUN and its rate limit.
    pub(super) fn filtered(&self, lun: &LunConfig) -> Arc<dyn Backend> {
        let blocks = filtered(self.blocks.clone(), lun);
        match &self.rate {
            Some(rate) => lunar_block::filter::rate(blocks, rate.clone()),
            None => blocks,
        }
    }

    /// Whether both have the same passthrough, or neither has one.
    pub(super) fn has_same_passthrough(&self, other: &Medium) -> bool {
        match (&self.commands, &other.commands) {
            (None, None) => true,
            (Some((a, _)), Some((b, _))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Units {
    /// The rate limit of a LUN. [`PlannedUnit::set_rate`] sets its values.
    pub(super) fn rate(&self, lun: &LunConfig, always: bool) -> Option<Arc<RateLimit>> {
        let share = share(lun, always)?;
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        Some(rates.entry(share.router).or_insert_with(|| RateLimit::new(0, 0)).clone())
    }

    /// The medium of a LUN: the open one if it is open in the same way, otherwise a new one.
    pub(super) fn medium(
        &self,
        name: &UnitName,
        lun: &LunConfig,
        media: &ReusableMedia<'_>,
    ) -> Result<Medium, Diagnostic> {
        if let Some(address) = lun.source.lu_address() {
            let routes = self
                .routes
                .as_ref()
                .ok_or_else(|| Diagnostic::new("no router is running for the LUN", "restart lunar"))?;
            let opened = routes.open(address);
            let rate = |opened: &RoutedLu| self.rate(lun, matches!(opened, RoutedLu::Commands(..)));
            return opened.map(|opened| Medium::of(rate(&opened), opened)).map_err(|e| {
                let hint = e.hint.as_ref().map_or("check the upstream: lunar ls URL", hints::words);
                Diagnostic::new(format!("{}: {}", lun.source, e.what), hint)
            });
        }
        if has_path(lun) {
            return self.at_path(name, lun, media);
        }
        let rate = self.rate(lun, false);
        if self.gateway.is_some() && is_shared(lun) {
            return shared_medium(name, lun, media, rate);
        }
        let blocks =
            media.find(name, lun).map_or_else(|| media.open(name, lun, true, &self.state_dir), Ok)?;
        Ok(Medium { blocks, commands: None, rate, block_size: None, shared: None, record: None })
    }
}

/// The medium of a shared LUN. Only the same unit continues with an open one, because its client belongs to its member.
fn shared_medium(
    name: &UnitName,
    lun: &LunConfig,
    media: &ReusableMedia<'_>,
    rate: Option<Arc<RateLimit>>,
) -> Result<Medium, Diagnostic> {
    let backend = match media.shared(name, lun) {
        Some(backend) => backend,
        None => Arc::new(open_shared(lun)?),
    };
    let (blocks, shared) = (backend.clone(), Some(backend));
    Ok(Medium { blocks, commands: None, rate, block_size: None, shared, record: None })
}

fn open_shared(lun: &LunConfig) -> Result<RbdBackend, Diagnostic> {
    let spec = spec(lun).ok_or_else(|| Diagnostic::new("the LUN has no image", "write backend = \"rbd\""))?;
    RbdBackend::open_shared(&spec).map_err(|e| cannot_open(lun, e))
}

/// The share of a LUN. A passthrough LUN (`always`) has one even without a limit, so that a reload can set a limit.
pub(super) fn share(lun: &LunConfig, always: bool) -> Option<Share> {
    let none = || {
        lun.source.lu_address().map(|address| Share {
            router: address.router.clone(),
            iops: 0,
            bytes_per_s: 0,
        })
    };
    lun.share.clone().or_else(|| none().filter(|_| always))
}

/// Notes about a medium of `capacity` bytes: hosts do not see all of it, or an existing file has another size than the
/// configured one.
pub(crate) fn notes_of_size(lun: &LunConfig, capacity: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let (block, rest) = (lun.block_size, capacity % u64::from(lun.block_size));
    if rest > 0 {
        notes.push(format!(
            "the last {rest} bytes of the medium are less than a block of {block} bytes and are not served"
        ));
    }
    if let (Some(path), Some(wanted)) = (lun.source.path(), lun.source.size())
        && capacity != wanted
    {
        let (found, wanted, path) = (size::show(capacity), size::show(wanted), path.display());
        notes.push(format!("{path} exists and keeps its size of {found}; the given size is {wanted}"));
    }
    notes
}

pub(crate) fn has_path(lun: &LunConfig) -> bool {
    lun.source.path().is_some()
}

/// The specification of a medium; None for a routed LUN.
pub(crate) fn spec(lun: &LunConfig) -> Option<BackendSpec> {
    let (kind, size) = (lun.source.kind()?, lun.source.size());
    if let Some(image) = lun.source.image() {
        let (read_only, create) = (lun.read_only, size.is_some());
        return Some(BackendSpec { size, read_only, create, ..BackendSpec::rbd(image.clone()) });
    }
    let Some(path) = lun.source.path() else { return size.map(|size| BackendSpec::sized(kind, size)) };
    Some(BackendSpec {
        kind,
        path: path.to_path_buf(),
        rbd: None,
        size,
        read_only: lun.read_only,
        direct: lun.direct,
        zero_copy: lun.zero_copy,
        create: size.is_some(),
        raw: lun.raw,
        journal: None,
        medium_id: None,
    })
}

/// Whether two LUNs open their medium in the same way. The size only matters for a file that does not exist yet.
pub(super) fn same_backend(a: &LunConfig, b: &LunConfig) -> bool {
    let backend = |lun: &LunConfig| match spec(lun) {
        Some(spec) if spec.kind.size_rule() == SizeRule::IfCreated => {
            Some(BackendSpec { size: None, create: false, raw: true, ..spec })
        }
        // An open medium counts as raw.
        other => other.map(|spec| BackendSpec { raw: true, ..spec }),
    };
    match (backend(a), backend(b)) {
        (None, None) => a.source == b.source,
        (a, b) => a == b,
    }
}

/// Whether both definitions lead to the same blocks, even by different paths.
pub(super) fn same_place(a: &LunConfig, b: &LunConfig) -> bool {
    let (kind, other) = (a.source.kind(), b.source.kind());
    match (a.source.path(), b.source.path()) {
        (Some(a), Some(b)) => kind == other && a == b,
        // The upstreams may differ: the identity decides.
        _ if kind.or(other).is_none() => {
            let identity = |lun: &LunConfig| lun.found.as_ref().map(|found| found.designators.clone());
            identity(a) == identity(b) && identity(a).is_some_and(|identity| !identity.is_empty())
        }
        _ if kind == other && kind == Some(BackendKind::Rbd) => a.source.image() == b.source.image(),
        _ => a.source == b.source,
    }
}
