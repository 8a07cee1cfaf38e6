//! Shared libraries of the host, loaded at first use: the program runs where they are missing.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};

/// A library that is never unloaded: its objects may be used as long as the process runs.
pub struct SharedLibrary {
    name: &'static str,
    handle: *mut c_void,
}

/// The last error of the dynamic loader.
fn loader_error() -> String {
    // SAFETY: dlerror has no preconditions. Its text is valid until the next call of this thread, and is copied.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "the dynamic loader gave no reason".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

impl SharedLibrary {
    /// Loads a library by its file name.
    ///
    /// # Safety
    /// The initializers of the library must have no preconditions.
    ///
    /// # Errors
    /// The text of the dynamic loader, when the library is missing or unsuitable.
    // SAFETY: the contract is above.
    pub unsafe fn open(name: &'static str) -> Result<SharedLibrary, String> {
        let path = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: the name is null-terminated; the initializers are as the contract says.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match handle.is_null() {
            true => Err(loader_error()),
            false => Ok(SharedLibrary { name, handle }),
        }
    }

    /// The address of a function: its default version, as a linker would resolve it.
    ///
    /// # Errors
    /// When the library has no such function.
    pub fn symbol(&self, name: &str) -> Result<*mut c_void, String> {
        let text = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: the handle is that of a loaded library, and the name is null-terminated.
        let address = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        match address.is_null() {
            true => Err(format!("the library {} has no function {name}", self.name)),
            false => Ok(address),
        }
    }
}

/// Defines a struct `Library` with the functions of shared libraries, the constant `FILES` with their file names, and
/// `Library::with` and `Library::load`, which fill the struct.
#[macro_export]
macro_rules! library_functions {
    ($($file:literal { $($name:ident($($arg:ty),*) $(-> $ret:ty)?;)* })*) => {
        /// The used functions, as the headers declare them.
        // SAFETY: these are types. Each call states its own reason.
        pub struct Library { $($(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*)* }

        /// The file names of the libraries.
        const FILES: &[&str] = &[$($file),*];

        impl Library {
            /// The functions at the addresses that `find` returns for a library and a name.
            ///
            /// # Safety
            /// Each address must be that of a function with the signature below.
            // SAFETY: the contract is above.
            pub unsafe fn with(
                find: &mut dyn FnMut(&'static str, &str) -> Result<*mut ::std::ffi::c_void, String>,
            ) -> Result<Library, String> {
                $($(
                    let address = find($file, stringify!($name))?;
                    // SAFETY: by the contract of this function.
                    let $name = unsafe {
                        ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(
                            address,
                        )
                    };
                )*)*
                Ok(Library { $($($name,)*)* })
            }

            /// The name, the arguments and the result of each function, for a comparison with the headers.
            #[cfg(test)]
            #[allow(dead_code, reason = "not every table has such a test")]
            pub const SIGNATURES: &[(&str, &[&str], &str)] =
                &[$($((stringify!($name), &[$(stringify!($arg)),*], concat!($(stringify!($ret))?)),)*)*];

            /// Loads the libraries under these file names, in the order of `FILES`.
            ///
            /// # Safety
            /// The initializers of the libraries must have no preconditions, and their functions these signatures.
            // SAFETY: the contract is above.
            unsafe fn load(files: &[&'static str]) -> Result<Library, String> {
                let mut open: Vec<(&str, $crate::shared_library::SharedLibrary)> = Vec::new();
                let mut find = |file: &'static str, name: &str| {
                    if open.last().is_none_or(|(last, _)| *last != file) {
                        let path = files.get(open.len()).copied().unwrap_or(file);
                        // SAFETY: by the contract of this function.
                        open.push((file, unsafe { $crate::shared_library::SharedLibrary::open(path)? }));
                    }
                    open.last().map_or(Err(file.into()), |(_, shared)| shared.symbol(name))
                };
                // SAFETY: by the contract of this function.
                unsafe { Library::with(&mut find) }
            }
        }
    };
}
