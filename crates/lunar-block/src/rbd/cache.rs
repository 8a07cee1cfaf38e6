//! Caches of librbd that the metadata of an image or of its pool turn on. They override the options of the client.

use super::client::{Fault, Pool, RadosClient, until_zero};
use super::image::Image;
use super::location::RbdLocation;
use crate::OpenError;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::io;

/// The prefix of the keys that hold options. A list begins after it.
const PREFIX: &str = "conf_";
const START: &CStr = c"conf_";
/// Lists all keys.
const NO_LIMIT: u64 = 0;
/// Bytes of the first buffers for a list. librbd asks for more if there are more keys.
const LIST_BYTES: usize = 4096;
/// The options that turn on a cache, with the values that do not. The plugin `parent_cache` is none of writes, and parents
/// do not change. A persistent cache of another client may have writes that are not in the cluster yet.
const CACHES: [(&str, &[&str]); 3] = [
    ("rbd_cache", &["false", "no", "off", "0"]),
    ("rbd_plugins", &["", "parent_cache"]),
    ("rbd_persistent_cache_mode", &["disabled"]),
];

type Metadata = BTreeMap<String, String>;

/// The object whose metadata set an option.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Image,
    Pool,
}

/// The option that turns on a cache, if one does: its object, name and value. Those of the image override those of the
/// pool.
fn cache_of(image: &Metadata, pool: &Metadata) -> Option<(Owner, &'static str, String)> {
    CACHES.iter().find_map(|(option, off)| {
        let key = format!("{PREFIX}{option}");
        let of_image = image.get(&key).map(|value| (Owner::Image, value));
        let (owner, value) = of_image.or_else(|| pool.get(&key).map(|value| (Owner::Pool, value)))?;
        let is_off = off.contains(&value.trim().to_lowercase().as_str());
        (!is_off).then(|| (owner, *option, value.clone()))
    })
}

fn refusal(location: &RbdLocation, (owner, option, value): (Owner, &str, String)) -> OpenError {
    let (path, pool) = (location.path(), &location.pool);
    let (of, hint) = match owner {
        Owner::Image => ("image", format!("run: rbd config image remove {path} {option}")),
        Owner::Pool => {
            let unset = format!("run: rbd config pool remove {pool} {option}");
            (
                "pool",
                format!("{unset}; or set another value for the image: rbd config image set {path} {option}"),
            )
        }
    };
    let what = format!("the configuration of the {of} turns on a cache of librbd: {option} = {value}");
    OpenError::new(location.to_string(), what, hint).of(io::ErrorKind::InvalidInput)
}

/// Null-terminated keys, and as many values.
fn pairs(keys: &[u8], values: &[u8]) -> Metadata {
    let texts =
        |bytes: &[u8]| -> Vec<String> { bytes.split_inclusive(|byte| *byte == 0).map(until_zero).collect() };
    texts(keys).into_iter().zip(texts(values)).collect()
}

/// Lists the options in metadata: `call` gets the buffers of keys and values, with their lengths.
fn list(
    client: &RadosClient,
    call: impl Fn(*mut c_char, &mut usize, *mut c_char, &mut usize) -> c_int,
) -> io::Result<Metadata> {
    let (mut keys, mut values) = (vec![0u8; LIST_BYTES], vec![0u8; LIST_BYTES]);
    loop {
        let (mut keys_len, mut values_len) = (keys.len(), values.len());
        let called =
            call(keys.as_mut_ptr().cast(), &mut keys_len, values.as_mut_ptr().cast(), &mut values_len);
        match client.checked(called) {
            Ok(_) => return Ok(pairs(&keys[..keys_len], &values[..values_len])),
            Err(e) if e.raw_os_error() == Some(Errno::RANGE.raw_os_error()) => {
                keys.resize(keys.len().max(keys_len), 0);
                values.resize(values.len().max(values_len), 0);
            }
            // The pool has no metadata.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Metadata::new()),
            Err(e) => return Err(e),
        }
    }
}

impl Image {
    /// Refuses an image that librbd caches, even if it is only read: another client may change it. A snapshot does not
    /// change.
    pub fn refuse_cache(&self, location: &RbdLocation) -> Result<(), OpenError> {
        if location.snapshot.is_some() {
            return Ok(());
        }
        let fault = Fault { location }.of("cannot read the metadata", "check the permissions of the user");
        let (image, pool) =
            self.options().and_then(|image| Ok((image, self.options_of_pool(location)?))).map_err(fault)?;
        cache_of(&image, &pool).map_or(Ok(()), |found| Err(refusal(location, found)))
    }

    fn options(&self) -> io::Result<Metadata> {
        let (library, handle) = self.parts();
        list(self.client(), |keys, keys_len, values, values_len| {
            // SAFETY: the image is open, the text is null-terminated, and the buffers have these lengths.
            unsafe {
                (library.rbd_metadata_list)(
                    handle,
                    START.as_ptr(),
                    NO_LIMIT,
                    keys,
                    keys_len,
                    values,
                    values_len,
                )
            }
        })
    }

    /// The pool stores them in its default namespace.
    fn options_of_pool(&self, location: &RbdLocation) -> io::Result<Metadata> {
        let (pool, (library, _)) = (Pool::open(self.client().clone(), &location.pool, "")?, self.parts());
        list(self.client(), |keys, keys_len, values, values_len| {
            // SAFETY: the pool is open, the text is null-terminated, and the buffers have these lengths.
            unsafe {
                (library.rbd_pool_metadata_list)(
                    pool.handle,
                    START.as_ptr(),
                    NO_LIMIT,
                    keys,
                    keys_len,
                    values,
                    values_len,
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> Metadata {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn option_of_the_image_overrides_that_of_the_pool() {
        let found =
            |image: &[(&str, &str)], pool: &[(&str, &str)]| cache_of(&metadata(image), &metadata(pool));
        let (on, off) = ([("conf_rbd_cache", "true")], [("conf_rbd_cache", "false")]);
        assert_eq!(found(&on, &off), Some((Owner::Image, "rbd_cache", "true".into())));
        assert_eq!(found(&[], &on), Some((Owner::Pool, "rbd_cache", "true".into())));
        assert_eq!(found(&off, &on), None);
        assert_eq!(found(&[("rbd_cache", "true"), ("conf_rbd_qos_iops_limit", "1")], &[]), None);
    }

    #[test]
    fn value_that_may_turn_on_a_cache_is_found() {
        for (key, value, is_cache) in [
            ("conf_rbd_cache", "1", true),
            ("conf_rbd_cache", " Yes", true),
            ("conf_rbd_cache", "False", false),
            ("conf_rbd_cache", "0", false),
            ("conf_rbd_plugins", "parent_cache,pwl_cache", true),
            ("conf_rbd_plugins", "parent_cache", false),
            ("conf_rbd_plugins", "", false),
            ("conf_rbd_persistent_cache_mode", "ssd", true),
            ("conf_rbd_persistent_cache_mode", "disabled", false),
        ] {
            assert_eq!(
                cache_of(&metadata(&[(key, value)]), &Metadata::new()).is_some(),
                is_cache,
                "{key} {value}"
            );
        }
    }

    #[test]
    fn empty_value_keeps_its_key() {
        let expected = metadata(&[("a", "1"), ("b", ""), ("c", "3")]);
        assert_eq!(pairs(b"a\0b\0c\0", b"1\x00\x003\0"), expected);
        assert_eq!(pairs(b"", b""), Metadata::new());
    }
}
