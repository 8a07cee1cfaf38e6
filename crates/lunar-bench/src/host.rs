//! The machine that runs a measurement.

use serde::{Deserialize, Serialize};

/// The properties of a machine that its figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its name.
    pub name: String,
    /// Kernel, such as `Linux 6.12.9 x86_64`.
    pub kernel: String,
    /// Model of the CPU.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The CPU frequency policy, if the kernel reports it.
    pub governor: Option<String>,
    /// Bytes of memory.
    pub memory: u64,
    /// The version of Lunar.
    pub lunar: String,
}

impl HostInfo {
    /// This machine.
    pub fn here() -> HostInfo {
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        HostInfo {
            name: lunar_runtime::host::name(),
            kernel: format!(
                "{} {} {}",
                text(system.sysname()),
                text(system.release()),
                text(system.machine())
            ),
            cpu: read("/proc/cpuinfo").and_then(|info| model(&info)).unwrap_or_else(|| "unknown".into()),
            cores: cores(),
            governor: governor.map(|text| text.trim().to_owned()),
            memory: rustix::system::sysinfo().totalram as u64,
            lunar: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn model(info: &str) -> Option<String> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_kernel_cores_and_memory() {
        let here = HostInfo::here();
        assert!(here.kernel.starts_with("Linux ") && here.cores > 0 && here.memory > 1 << 20, "{here:?}");
        assert_eq!(model("processor : 0\nmodel name\t: Good CPU\n").as_deref(), Some("Good CPU"));
    }
}
