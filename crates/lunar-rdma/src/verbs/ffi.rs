//! The binary interface of libibverbs and librdmacm, as far as it is used. It assumes 64 bits, and is the same on
//! every architecture.
//!
//! Structures that the libraries allocate are used by pointer, and only their first fields are declared. The sizes
//! and offsets below were measured with rdma-core 44, and have not changed since its first releases. A test compares
//! them with the headers of the host.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;

/// Room for a socket address of any family (`struct sockaddr_storage`).
#[repr(C, align(8))]
pub struct sockaddr_any(pub [u8; 128]);

/// Types that are private to the libraries.
pub enum ibv_pd {}

#[repr(C)]
pub struct ibv_device {
    pub ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
}

type Unused = *mut c_void;
// SAFETY: these are types. Each caller of such a function states why the call is sound.
pub type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub type PostSrqRecv = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The data path functions, which the headers inline.
#[repr(C)]
pub struct ibv_context_ops {
    unused0: [Unused; 11],
    pub poll_cq: PollCq,
    pub req_notify_cq: ReqNotifyCq,
    unused1: [Unused; 7],
    pub post_srq_recv: PostSrqRecv,
    unused2: [Unused; 4],
    pub post_send: PostSend,
    pub post_recv: PostRecv,
    unused3: [Unused; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
}

/// `element` is a pointer to a queue, or the number of a port.
#[repr(C)]
pub struct ibv_async_event {
    pub element: u64,
    pub event_type: c_int,
}

#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub invalidate_rkey: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// Fields of atomic operations, of memory windows and of other kinds of queue pairs.
    pub others: [u64; 9],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub invalidated_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// The capabilities of a device. The numbers are signed as in C.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_device_attr {
    pub unused0: [u64; 14],
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub unused1: [c_int; 13],
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub unused2: [c_int; 2],
}

#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub src_addr: sockaddr_any,
    pub dst_addr: sockaddr_any,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_int,
    pub status: c_int,
    pub param: rdma_conn_param,
}

impl Default for ibv_send_wr {
    fn default() -> Self {
        ibv_send_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            invalidate_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            others: [0; 9],
        }
    }
}

/// `enum ibv_wr_opcode`.
pub const WR_RDMA_WRITE: c_int = 0;
pub const WR_SEND: c_int = 2;
pub const WR_RDMA_READ: c_int = 4;
pub const WR_SEND_WITH_INV: c_int = 9;
/// `enum ibv_send_flags`.
pub const SEND_SIGNALED: c_uint = 2;
pub const SEND_INLINE: c_uint = 8;
/// enum `ibv_wc_status`, and the flag for a message that has invalidated a local key.
pub const WC_SUCCESS: c_int = 0;
pub const WC_FLUSH_ERR: c_int = 5;
pub const WC_WITH_INV: c_uint = 8;
/// `enum ibv_access_flags`.
pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 2;
pub const ACCESS_REMOTE_READ: c_int = 4;
/// `enum ibv_qp_type`: reliable connected.
pub const QPT_RC: c_int = 2;
/// `enum ibv_transport_type`.
pub const TRANSPORT_IWARP: c_int = 1;
/// `enum ibv_device_cap_flags`: memory management extensions.
pub const DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
/// `enum ibv_event_type`.
pub const EVENT_CQ_ERR: c_int = 0;
pub const EVENT_QP_FATAL: c_int = 1;
pub const EVENT_QP_REQ_ERR: c_int = 2;
pub const EVENT_QP_ACCESS_ERR: c_int = 3;
pub const EVENT_DEVICE_FATAL: c_int = 8;
#[cfg(test)]
pub const EVENT_PORT_ERR: c_int = 10;
pub const EVENT_SRQ_ERR: c_int = 14;
pub const EVENT_QP_LAST_WQE_REACHED: c_int = 16;
/// `enum rdma_port_space`.
pub const PS_TCP: c_int = 0x0106;
/// Options of an id.
pub const OPTION_ID: c_int = 0;
pub const OPTION_ID_REUSEADDR: c_int = 1;
pub const OPTION_ID_AFONLY: c_int = 2;
/// `enum rdma_cm_event_type`.
pub const ADDR_RESOLVED: c_int = 0;
pub const ROUTE_RESOLVED: c_int = 2;
pub const CONNECT_REQUEST: c_int = 4;
#[cfg(test)]
pub const UNREACHABLE: c_int = 7;
pub const REJECTED: c_int = 8;
pub const ESTABLISHED: c_int = 9;
pub const DISCONNECTED: c_int = 10;
pub const DEVICE_REMOVAL: c_int = 11;
pub const ADDR_CHANGE: c_int = 14;
pub const TIMEWAIT_EXIT: c_int = 15;

/// The offsets of fields, and the same as C expressions.
macro_rules! layout {
    ($($name:ident: $size:literal { $($field:ident as $c:literal @ $at:literal),* $(,)? })*) => {
        const _: () = {
            $(
                assert!(size_of::<$name>() == $size);
                $(assert!(offset_of!($name, $field) == $at);)*
            )*
        };
        /// The offsets that a C compiler must find: structure, field, offset.
        #[cfg(test)]
        pub const PLACES: &[(&str, &str, usize)] = &[
            $($((stringify!($name), $c, $at),)*)*
        ];
    };
}

// These sizes cover only the declared fields. SIZES below has the full sizes.
layout! {
    ibv_device: 88 { node_type as "node_type" @ 16, transport_type as "transport_type" @ 20, name as "name" @ 24 }
    ibv_context_ops: 256 {
        poll_cq as "poll_cq" @ 88, req_notify_cq as "req_notify_cq" @ 96, post_srq_recv as "post_srq_recv" @ 160,
        post_send as "post_send" @ 200, post_recv as "post_recv" @ 208,
    }
    ibv_context: 280 {
        ops as "ops" @ 8, cmd_fd as "cmd_fd" @ 264, async_fd as "async_fd" @ 268,
        num_comp_vectors as "num_comp_vectors" @ 272,
    }
    ibv_mr: 48 { addr as "addr" @ 16, length as "length" @ 24, lkey as "lkey" @ 36, rkey as "rkey" @ 40 }
    ibv_comp_channel: 16 { fd as "fd" @ 8 }
    ibv_cq: 32 { context as "context" @ 0, channel as "channel" @ 8, cqe as "cqe" @ 28 }
    ibv_qp: 56 { context as "context" @ 0, qp_context as "qp_context" @ 8, qp_num as "qp_num" @ 52 }
    ibv_sge: 16 { addr as "addr" @ 0, length as "length" @ 8, lkey as "lkey" @ 12 }
    ibv_recv_wr: 32 { wr_id as "wr_id" @ 0, next as "next" @ 8, sg_list as "sg_list" @ 16, num_sge as "num_sge" @ 24 }
    ibv_send_wr: 128 {
        wr_id as "wr_id" @ 0, next as "next" @ 8, sg_list as "sg_list" @ 16, num_sge as "num_sge" @ 24,
        opcode as "opcode" @ 28, send_flags as "send_flags" @ 32, invalidate_rkey as "invalidate_rkey" @ 36,
        remote_addr as "wr.rdma.remote_addr" @ 40, rkey as "wr.rdma.rkey" @ 48,
    }
    ibv_wc: 48 {
        wr_id as "wr_id" @ 0, status as "status" @ 8, opcode as "opcode" @ 12, vendor_err as "vendor_err" @ 16,
        byte_len as "byte_len" @ 20, invalidated_rkey as "invalidated_rkey" @ 24, qp_num as "qp_num" @ 28,
        wc_flags as "wc_flags" @ 36,
    }
    ibv_qp_init_attr: 64 {
        send_cq as "send_cq" @ 8, recv_cq as "recv_cq" @ 16, srq as "srq" @ 24, cap as "cap" @ 32,
        qp_type as "qp_type" @ 52, sq_sig_all as "sq_sig_all" @ 56,
    }
    ibv_async_event: 16 { element as "element" @ 0, event_type as "event_type" @ 8 }
    ibv_srq: 8 { context as "context" @ 0 }
    ibv_srq_init_attr: 24 {
        srq_context as "srq_context" @ 0, max_wr as "attr.max_wr" @ 8, max_sge as "attr.max_sge" @ 12,
        srq_limit as "attr.srq_limit" @ 16,
    }
    ibv_device_attr: 232 {
        max_qp_wr as "max_qp_wr" @ 112, device_cap_flags as "device_cap_flags" @ 116, max_cqe as "max_cqe" @ 132,
        max_qp_rd_atom as "max_qp_rd_atom" @ 144, max_qp_init_rd_atom as "max_qp_init_rd_atom" @ 156,
        max_srq as "max_srq" @ 212, max_srq_wr as "max_srq_wr" @ 216,
    }
    rdma_event_channel: 4 { fd as "fd" @ 0 }
    rdma_cm_id: 288 {
        verbs as "verbs" @ 0, channel as "channel" @ 8, qp as "qp" @ 24, src_addr as "route.addr.src_addr" @ 32,
        dst_addr as "route.addr.dst_addr" @ 160,
    }
    rdma_conn_param: 24 {
        private_data as "private_data" @ 0, private_data_len as "private_data_len" @ 8,
        responder_resources as "responder_resources" @ 9, initiator_depth as "initiator_depth" @ 10,
        retry_count as "retry_count" @ 12, rnr_retry_count as "rnr_retry_count" @ 13, qp_num as "qp_num" @ 16,
    }
    rdma_cm_event: 48 {
        id as "id" @ 0, listen_id as "listen_id" @ 8, event as "event" @ 16, status as "status" @ 20,
        param as "param" @ 24,
    }
}

/// The sizes of structures that are allocated here, and that the libraries read or fill.
#[cfg(test)]
pub const SIZES: &[(&str, usize)] = &[
    ("ibv_sge", size_of::<ibv_sge>()),
    ("ibv_recv_wr", size_of::<ibv_recv_wr>()),
    ("ibv_send_wr", size_of::<ibv_send_wr>()),
    ("ibv_wc", size_of::<ibv_wc>()),
    ("ibv_qp_init_attr", size_of::<ibv_qp_init_attr>()),
    ("ibv_async_event", size_of::<ibv_async_event>()),
    ("ibv_srq_init_attr", size_of::<ibv_srq_init_attr>()),
    ("ibv_device_attr", size_of::<ibv_device_attr>()),
    ("rdma_conn_param", size_of::<rdma_conn_param>()),
];

/// The header's names of the constants above.
#[cfg(test)]
pub const NUMBERS: &[(&str, i64)] = &[
    ("IBV_WR_RDMA_WRITE", WR_RDMA_WRITE as i64),
    ("IBV_WR_SEND", WR_SEND as i64),
    ("IBV_WR_RDMA_READ", WR_RDMA_READ as i64),
    ("IBV_WR_SEND_WITH_INV", WR_SEND_WITH_INV as i64),
    ("IBV_SEND_SIGNALED", SEND_SIGNALED as i64),
    ("IBV_SEND_INLINE", SEND_INLINE as i64),
    ("IBV_WC_SUCCESS", WC_SUCCESS as i64),
    ("IBV_WC_WR_FLUSH_ERR", WC_FLUSH_ERR as i64),
    ("IBV_WC_WITH_INV", WC_WITH_INV as i64),
    ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as i64),
    ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE as i64),
    ("IBV_ACCESS_REMOTE_READ", ACCESS_REMOTE_READ as i64),
    ("IBV_QPT_RC", QPT_RC as i64),
    ("IBV_TRANSPORT_IWARP", TRANSPORT_IWARP as i64),
    ("IBV_DEVICE_MEM_MGT_EXTENSIONS", DEVICE_MEM_MGT_EXTENSIONS as i64),
    ("IBV_EVENT_CQ_ERR", EVENT_CQ_ERR as i64),
    ("IBV_EVENT_QP_FATAL", EVENT_QP_FATAL as i64),
    ("IBV_EVENT_QP_REQ_ERR", EVENT_QP_REQ_ERR as i64),
    ("IBV_EVENT_QP_ACCESS_ERR", EVENT_QP_ACCESS_ERR as i64),
    ("IBV_EVENT_DEVICE_FATAL", EVENT_DEVICE_FATAL as i64),
    ("IBV_EVENT_PORT_ERR", EVENT_PORT_ERR as i64),
    ("IBV_EVENT_SRQ_ERR", EVENT_SRQ_ERR as i64),
    ("IBV_EVENT_QP_LAST_WQE_REACHED", EVENT_QP_LAST_WQE_REACHED as i64),
    ("RDMA_PS_TCP", PS_TCP as i64),
    ("RDMA_OPTION_ID", OPTION_ID as i64),
    ("RDMA_OPTION_ID_REUSEADDR", OPTION_ID_REUSEADDR as i64),
    ("RDMA_OPTION_ID_AFONLY", OPTION_ID_AFONLY as i64),
    ("RDMA_CM_EVENT_ADDR_RESOLVED", ADDR_RESOLVED as i64),
    ("RDMA_CM_EVENT_ROUTE_RESOLVED", ROUTE_RESOLVED as i64),
    ("RDMA_CM_EVENT_CONNECT_REQUEST", CONNECT_REQUEST as i64),
    ("RDMA_CM_EVENT_UNREACHABLE", UNREACHABLE as i64),
    ("RDMA_CM_EVENT_REJECTED", REJECTED as i64),
    ("RDMA_CM_EVENT_ESTABLISHED", ESTABLISHED as i64),
    ("RDMA_CM_EVENT_DISCONNECTED", DISCONNECTED as i64),
    ("RDMA_CM_EVENT_DEVICE_REMOVAL", DEVICE_REMOVAL as i64),
    ("RDMA_CM_EVENT_ADDR_CHANGE", ADDR_CHANGE as i64),
    ("RDMA_CM_EVENT_TIMEWAIT_EXIT", TIMEWAIT_EXIT as i64),
];
