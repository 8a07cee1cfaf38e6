//! iSER in a build without the feature `rdma`: every attempt to connect fails.

use crate::session::transport::Datamover;
use crate::{Error, Options, io_error};
use lunar_proto::Pdu;
use lunar_runtime::Stream;
use lunar_wire::iscsi::Bhs;
use std::net::SocketAddr;
use std::rc::Rc;

/// No value of this type exists.
pub enum IserLoginConnection {}

impl IserLoginConnection {
    pub async fn by_device(_: SocketAddr, _: &Options) -> Result<IserLoginConnection, Error> {
        Err(io_error::no_rdma_feature())
    }

    pub async fn over(_: Stream, _: &Options) -> Result<IserLoginConnection, Error> {
        Err(io_error::no_rdma_feature())
    }

    pub fn provider(&self) -> &str {
        match *self {}
    }

    pub fn peer(&self) -> SocketAddr {
        match *self {}
    }

    pub async fn send(&mut self, _: Pdu) -> Result<(), Error> {
        match *self {}
    }

    pub async fn receive(&mut self, _: usize) -> Result<(Bhs, Vec<u8>), Error> {
        match *self {}
    }

    pub fn into_datamover(self) -> Rc<dyn Datamover> {
        match self {}
    }
}
