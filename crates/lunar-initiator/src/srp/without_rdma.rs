//! SRP in a build without the feature `rdma`: every attempt to connect fails.

use crate::nexus::LoginTarget;
use crate::session::transport::Datamover;
use crate::{Error, Options, io_error};
use lunar_proto::initiator::login::LoggedIn;
use lunar_runtime::Stream;
use lunar_wire::srp::{LoginRequest, LoginResponse};
use std::net::SocketAddr;
use std::rc::Rc;

/// No value of this type exists.
pub enum SrpLoginConnection {}

impl SrpLoginConnection {
    pub async fn over(_: Stream, _: &LoginTarget, _: &Options) -> Result<SrpLoginConnection, Error> {
        Err(io_error::no_rdma_feature())
    }

    pub async fn by_device(_: SocketAddr, _: &LoginTarget, _: &Options) -> Result<SrpLoginConnection, Error> {
        Err(io_error::no_rdma_feature())
    }

    pub fn login(&self) -> &LoggedIn {
        match *self {}
    }

    pub fn response(&self) -> &LoginResponse {
        match *self {}
    }

    pub fn provider(&self) -> &str {
        match *self {}
    }

    pub fn join(&mut self, _: SrpLoginConnection) {
        match *self {}
    }

    pub fn into_datamover(self) -> Rc<dyn Datamover> {
        match self {}
    }
}

pub fn request(_: &LoginTarget, _: &Options) -> Result<LoginRequest, Error> {
    Err(io_error::no_rdma_feature())
}
