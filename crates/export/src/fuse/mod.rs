//! A backend as a file, by FUSE.
