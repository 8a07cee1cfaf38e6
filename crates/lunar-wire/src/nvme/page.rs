//! Pages with fields at fixed offsets.

use crate::le;

/// A field of a page.
pub trait PageField: Sized {
    /// Writes it to the start of these bytes.
    fn put(&self, bytes: &mut [u8]);
    /// Reads it from the start of these bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! integers {
    ($($type:ty: $put:path, $get:path;)*) => {
        $(impl PageField for $type {
            fn put(&self, bytes: &mut [u8]) {
                $put(bytes, *self);
            }

            fn get(bytes: &[u8]) -> Self {
                $get(bytes)
            }
        })*
    };
}

integers! {
    u16: le::put16, le::get16;
    u32: le::put32, le::get32;
    u64: le::put64, le::get64;
}

impl PageField for u8 {
    fn put(&self, bytes: &mut [u8]) {
        bytes[0] = *self;
    }

    fn get(bytes: &[u8]) -> u8 {
        bytes[0]
    }
}

impl<const N: usize> PageField for [u8; N] {
    fn put(&self, bytes: &mut [u8]) {
        bytes[..N].copy_from_slice(self);
    }

    fn get(bytes: &[u8]) -> [u8; N] {
        *bytes.first_chunk().expect("the field is within its page")
    }
}

/// Defines a page: its name, its length in bytes, and its fields with their offsets. Bytes without a field are zero when
/// sent, and ignored when received.
macro_rules! page {
    ($(#[$doc:meta])* $name:ident, $len:literal, {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $offset:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Bytes of the page.
            pub const LEN: usize = $len;

            /// A page of zeros.
            pub fn zeroed() -> $name {
                $name::decode(&[0; $len])
            }

            /// Decodes a page.
            pub fn decode(page: &[u8; $len]) -> $name {
                $name { $($field: $crate::nvme::page::PageField::get(&page[$offset..]),)* }
            }

            /// Encodes the page.
            pub fn encode(&self) -> [u8; $len] {
                let mut page = [0; $len];
                $($crate::nvme::page::PageField::put(&self.$field, &mut page[$offset..]);)*
                page
            }
        }
    };
}

pub(super) use page;
