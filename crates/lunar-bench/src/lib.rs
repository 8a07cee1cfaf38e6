//! The benchmark engine: runs workloads on storage and keeps their results.
//!
//! [`OpenTargets`] holds targets that are open on the cores of this machine. It runs a [`Job`] and returns a
//! [`JobOutcome`]; a [`Document`] keeps the results. Compatibility modes of other tools (`lunar-bench-compat`)
//! and experiments (`lunar-experiments`) run jobs, too.
//!
//! On each core, a session has as many lanes as the job has depth. For each lane it chooses an offset, waits until the
//! request is due if the job has a rate, passes it to the `Backend`, and records it in the session's histograms. Text, JSON,
//! the HTML report and `lunar bench compare` are four views of one document. A cleanup guard holds what an experiment starts, mounts
//! and creates. It cleans up with its owner, or when a second signal ends the process.
#![forbid(unsafe_code)]

mod cleanup;
pub mod compare;
pub mod comparison_table;
mod cpu;
mod data_pattern;
pub mod device;
pub mod document;
mod error;
mod host;
pub mod job;
pub mod machine_load;
mod offsets;
mod open_targets;
pub mod outcome;
pub mod overhead;
pub mod plain;
pub mod report;
pub mod rounds;
mod run;
mod run_handle;
#[cfg(test)]
mod sample;
mod scatter;
mod session_stats;
mod terse;
pub mod testing;
pub mod text_report;
mod time_series;
mod transport;
pub mod verify;
pub mod words;

pub use cleanup::{CleanupGuard, clean_up_all};
pub use document::Document;
pub use error::{Error, ErrorKind};
pub use host::HostInfo;
pub use job::Job;
pub use open_targets::{OpenTargets, TargetOptions, TargetSpec};
pub use outcome::JobOutcome;
pub use run_handle::RunHandle;
pub use terse::terse;
pub use transport::TargetTransport;
