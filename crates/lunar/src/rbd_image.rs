//! Images of Ceph RBD as arguments of commands: `rbd:POOL/IMAGE`.

use crate::exit::Failure;
use crate::tree::Node;
use lunar_block::{Backend, BackendSpec, OpenError, RbdBackend, RbdLocation};
use lunar_proto::size;
use lunar_server::{Diagnostic, ErrorCode};

/// Opens an image, inside an event loop. It waits for the cluster on a thread. `edit` completes the specification.
///
/// # Errors
/// A malformed argument, or those of the cluster.
pub async fn open(text: &str, edit: impl FnOnce(&mut BackendSpec)) -> Result<RbdBackend, Failure> {
    let location = RbdLocation::parse(text).map_err(|(what, hint)| Diagnostic::new(what, hint))?;
    let mut spec = BackendSpec::rbd(location);
    edit(&mut spec);
    let opened = lunar_runtime::blocking(move || Ok(RbdBackend::open(&spec))).await;
    let opened = opened.map_err(|e| {
        let hint = crate::error_hints::process_limits(&e);
        Diagnostic::new(format!("{text}: cannot start a thread: {e}"), hint)
    })?;
    opened.map_err(|e| cannot_open(e).into())
}

/// The reason for which an image cannot be opened.
pub fn cannot_open(e: OpenError) -> Diagnostic {
    Diagnostic::new(format!("{}: {}", e.subject, e.what), e.hint).with_code(ErrorCode::from(e.kind))
}

/// The properties of an image.
///
/// # Errors
/// As [`open`].
pub async fn properties(text: &str) -> Result<Vec<(String, Node)>, Failure> {
    let image = open(text, |spec| spec.read_only = true).await?;
    let bytes = image.info().capacity;
    let fields = [
        ("image", Node::text(image.location().to_string())),
        ("identity", Node::text(image.identity())),
        ("object_bytes", Node::number(image.object_bytes())),
        ("bytes", Node::number(bytes)),
        ("size", Node::text(size::show(bytes))),
        ("exclusive_lock", Node::flag(image.has_exclusive_lock())),
    ];
    Ok(fields.map(|(name, node)| (name.to_owned(), node)).into())
}
