//! A namespace as a [`Backend`].

use super::NvmeNamespace;
use super::queue::NamespaceQueue;
use crate::{Direction, Error};
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, LocalBoxFuture, describe_row, within};
use lunar_runtime::Buf;
use lunar_wire::nvme::{Sqe, nvm_opcode};
use lunar_wire::scsi::fields::utf8;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

impl NvmeNamespace {
    /// Makes completed writes durable. Flush is legal without a cache, and the cache may be on since the last connection.
    pub(super) async fn flush_cache(&self) -> Result<(), Error> {
        self.perform(Sqe::new(nvm_opcode::FLUSH, 0, self.id), Direction::None, None).await.0
    }

    /// Checks that the namespace is still the same. A command must not go to another disk.
    pub(super) fn check_same(&self) -> Result<(), Error> {
        if !self.is_replaced.load(Ordering::Relaxed) {
            return Ok(());
        }
        let replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.clone().map_or(Ok(()), Err)
    }

    /// Checks that the namespace is still the same, and has these bytes.
    pub(super) fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_same()?;
        within(self.capacity.load(Ordering::Relaxed), offset, len)
    }
}

impl Backend for NvmeNamespace {
    fn info(&self) -> BackendInfo {
        let properties = self.properties();
        BackendInfo {
            capacity: self.capacity.load(Ordering::Relaxed),
            read_only: properties.is_read_only(),
            unmap: self.can_deallocate(),
            null: false,
            remote: true,
            // Callers keep this answer, and the next connection may be to a controller with a write cache.
            write_through: false,
        }
    }

    fn refresh(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    fn device_block_size(&self) -> Option<u32> {
        Some(self.block_size)
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            if let Err(e) = self.check(offset, buf.len() as u64) {
                return (Err(e), buf);
            }
            let (result, buf) = self.read_any(offset, buf).await;
            (result.map_err(io::Error::from), buf)
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            if let Err(e) = self.check(offset, buf.len() as u64) {
                return (Err(e), buf);
            }
            let (result, buf) = self.write_any(offset, buf, fua).await;
            (result.map_err(io::Error::from), buf)
        })
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        let io = self.controller().io_queues().first_local()?;
        Some(Box::new(NamespaceQueue::new(self, io)))
    }

    fn max_compare_and_swap(&self) -> u32 {
        self.max_compare()
    }

    fn compare_and_swap(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, io::Result<Option<usize>>> {
        Box::pin(async move {
            self.check(offset, buf.len() as u64 / 2)?;
            self.compare_and_swap(offset, buf).await
        })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.flush_cache().await.map_err(io::Error::from) })
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check(offset, len)?;
            self.zero(offset, len, true).await.map_err(io::Error::from)
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check(offset, len)?;
            self.zero(offset, len, unmap).await.map_err(io::Error::from)
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let info = self.controller().info();
        vec![
            describe_row("kind", "remote"),
            describe_row("subsystem", utf8(info.subsystem.as_str().as_bytes())),
            describe_row("portal", &info.portal),
            describe_row("namespace", self.id),
            describe_row("model", info.model()),
            describe_row("serial", info.serial()),
        ]
    }
}
