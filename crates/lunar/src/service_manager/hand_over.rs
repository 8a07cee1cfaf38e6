//! State for the next process of the service: a sealed file in memory, in the store of descriptors. The store outlives a
//! restart, and a stop empties it.

use super::{forget, keep};
use lunar_server::inherited::InheritedDescriptor;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;

/// Its name in the store.
const NAME: &str = "state";
/// Upper limit of the state in bytes.
const MAX: u64 = 64 << 20;

/// Stores the state.
pub fn hand_over(state: &[u8]) {
    match sealed(state) {
        Ok(file) => keep(NAME, file.as_fd()),
        Err(e) => {
            tracing::warn!(
                "reservations without APTPL and unsaved mode pages do not outlive the restart: {e}; hint: hosts can \
                 register with APTPL"
            )
        }
    }
}

/// The state that an earlier process handed over. It stays in the store until it is [`forgotten`](Self::forget), so that
/// a process that fails to start leaves it to the next one.
pub struct HandedState(Option<Vec<u8>>);

impl HandedState {
    /// Takes the state out of the inherited descriptors.
    pub fn take(inherited: &mut Vec<InheritedDescriptor>) -> Option<HandedState> {
        let at = inherited.iter().position(|has| has.name == NAME)?;
        let state = content(File::from(inherited.remove(at).fd));
        if let Err(e) = &state {
            tracing::warn!("state of the earlier process ignored: {e}");
        }
        Some(HandedState(state.ok()))
    }

    /// None if it cannot be used.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }

    /// Removes it from the store: it is used once.
    pub fn forget(self) {
        forget(NAME);
    }
}

fn seals() -> SealFlags {
    SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE
}

fn check_size(size: u64) -> io::Result<()> {
    match size > MAX {
        true => Err(io::Error::other(format!("the state has {size} bytes, above the limit of {MAX}"))),
        false => Ok(()),
    }
}

fn sealed(state: &[u8]) -> io::Result<File> {
    check_size(state.len() as u64)?;
    let mut file = File::from(memfd_create("lunar-state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(state)?;
    fcntl_add_seals(&file, seals())?;
    Ok(file)
}

fn content(mut file: File) -> io::Result<Vec<u8>> {
    if !fcntl_get_seals(&file).is_ok_and(|has| has.contains(seals())) {
        return Err(io::Error::other("it is not sealed"));
    }
    // A part of it would look like the whole.
    check_size(file.metadata()?.len())?;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(file: File) -> Vec<InheritedDescriptor> {
        vec![InheritedDescriptor { name: NAME.into(), fd: file.into() }]
    }

    /// The state, and whether it can be used.
    fn taken(has: &mut Vec<InheritedDescriptor>) -> Option<Option<Vec<u8>>> {
        HandedState::take(has).map(|state| state.0)
    }

    #[test]
    fn sealed_state_is_taken_once() {
        let mut has = inherited(sealed(b"state").unwrap());
        assert_eq!(taken(&mut has), Some(Some(b"state".to_vec())));
        assert_eq!((has.len(), taken(&mut has)), (0, None));
    }

    #[test]
    fn state_above_the_limit_is_neither_stored_nor_taken() {
        let why = "the state has 67108865 bytes, above the limit of 67108864";
        assert_eq!(sealed(&vec![0; MAX as usize + 1]).unwrap_err().to_string(), why);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = |size| {
            let file = File::from(memfd_create("large", flags).unwrap());
            file.set_len(size).unwrap();
            fcntl_add_seals(&file, seals()).unwrap();
            file
        };
        assert_eq!(content(file(MAX + 1)).unwrap_err().to_string(), why);
        assert_eq!(content(file(3)).unwrap(), [0; 3]);
    }

    #[test]
    fn unsealed_file_is_refused() {
        let mut file = File::from(memfd_create("other", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(b"state").unwrap();
        assert_eq!(taken(&mut inherited(file)), Some(None));
        assert_eq!(taken(&mut inherited(File::open("/dev/null").unwrap())), Some(None));
    }
}
