//! Opens a controller or a namespace from a URL.

use super::association::SubsystemAddress;
use super::controller::NvmeController;
use super::namespace::NvmeNamespace;
use super::options::NvmeOptions;
use crate::url::nvme::NvmeUrl;
use crate::{Error, ErrorCode};
use std::sync::Arc;

/// The number of namespaces that a hint lists.
const LISTED: usize = 8;

/// Connects to the controller of a URL.
///
/// # Errors
/// Those of [`NvmeUrl::options`] and [`connect_with`].
pub async fn connect(url: &NvmeUrl) -> Result<NvmeController, Error> {
    connect_with(url, url.options()?).await
}

/// [`connect`] with other options than those of the URL.
///
/// # Errors
/// Those of [`NvmeController::open`]; [`ErrorCode::InvalidArgument`] without a subsystem, or with several paths.
pub async fn connect_with(url: &NvmeUrl, options: NvmeOptions) -> Result<NvmeController, Error> {
    if url.paths().len() > 1 {
        let what = format!("{} names several paths, but one controller is connected", url.plain());
        return Err(Error::new(ErrorCode::InvalidArgument, what).with_hint("remove paths= from the URL"));
    }
    let Some(subsystem) = url.subsystem.clone() else {
        let what = format!("{} names no subsystem", url.plain());
        return Err(Error::new(ErrorCode::InvalidArgument, what).with_hint(
            "write nvme://HOST[:PORT]/NQN; lunar discover nvme://HOST:8009 lists the subsystems",
        ));
    };
    NvmeController::open(SubsystemAddress { portal: url.portal.clone(), subsystem }, options).await
}

/// Opens the namespace of a URL with a controller of its own. The URL may omit the namespace if there is exactly one.
///
/// # Errors
/// Those of [`NvmeUrl::options`] and [`open_with`].
pub async fn open(url: &NvmeUrl) -> Result<Arc<NvmeNamespace>, Error> {
    open_with(url, url.options()?).await
}

/// [`open`] with other options than those of the URL.
///
/// # Errors
/// Those of [`connect_with`], [`namespace_of`] and [`NvmeNamespace::open`].
pub async fn open_with(url: &NvmeUrl, options: NvmeOptions) -> Result<Arc<NvmeNamespace>, Error> {
    let controller = connect_with(url, options).await?;
    let opened = async { NvmeNamespace::open(&controller, namespace_of(url, &controller).await?).await };
    let opened = opened.await;
    if opened.is_err() {
        controller.close().await;
    }
    opened
}

/// The number of the namespace of a URL. The URL may omit the namespace if there is exactly one.
///
/// # Errors
/// Those of Identify and [`NamespaceName::resolve`](super::NamespaceName::resolve); [`ErrorCode::NotFound`] without a
/// namespace, [`ErrorCode::InvalidArgument`] with several.
pub async fn namespace_of(url: &NvmeUrl, controller: &NvmeController) -> Result<u32, Error> {
    match url.namespace {
        Some(name) => name.resolve(controller).await,
        None => only(url, &controller.namespaces().await?),
    }
}

fn only(url: &NvmeUrl, found: &[u32]) -> Result<u32, Error> {
    match found {
        [one] => Ok(*one),
        [] => Err(Error::new(
            ErrorCode::NotFound,
            format!("{}: the controller has no namespace for this host", url.plain()),
        )),
        all => {
            let mut list =
                all.iter().take(LISTED).map(|id| url.at(*id).plain()).collect::<Vec<_>>().join(", ");
            if all.len() > LISTED {
                list += &format!(", and {} more", all.len() - LISTED);
            }
            let what = format!("{}: the URL names none of the {} namespaces", url.plain(), all.len());
            Err(Error::new(ErrorCode::InvalidArgument, what).with_hint(format!("choose one of: {list}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_namespace_will_do_and_several_are_listed() {
        let url: NvmeUrl = "nvme://h/nqn.2026-11.org.example:a".parse().expect("a URL");
        assert_eq!(only(&url, &[7]), Ok(7));
        assert_eq!(only(&url, &[]).map_err(|e| e.code), Err(ErrorCode::NotFound));
        let many: Vec<u32> = (1..=9).collect();
        let hint = only(&url, &many).expect_err("nine").hint.clone().expect("a hint");
        assert!(hint.contains("choose one of: nvme://h:4420/nqn.2026-11.org.example:a/1, "), "{hint}");
        assert!(hint.ends_with("/8, and 1 more"), "{hint}");
    }
}
