//! What is known of the process itself and of the disk beneath it, read when somebody asks for metrics.
//!
//! The names that begin with `process_` are those that Prometheus' own client libraries use.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::info::Info;
use runtime::Metrics;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Shows `process_…` and `bezant_build_info` among `metrics`. The process counts as started now.
pub fn show_process(metrics: &Metrics, version: &'static str) {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    metrics.register_unprefixed(|registry| registry.register_collector(Box::new(Process { started })));
    metrics.register(|registry| registry.register("build", "What runs here", Info::new([("version", version)])));
}

/// Shows how much room the disk with `folder` has among `metrics`.
pub fn show_disk(metrics: &Metrics, folder: PathBuf) {
    metrics.register(|registry| registry.register_collector(Box::new(DiskSpace { folder })));
}

/// How much room a disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// Bytes left for this process.
    pub free: u64,
    /// All its bytes.
    pub size: u64,
}

impl DiskRoom {
    /// That of the disk with `folder`; nothing where the system does not say.
    #[must_use]
    pub fn of(folder: &Path) -> Option<Self> {
        let disk = rustix::fs::statvfs(folder).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Some(Self { free: bytes(disk.f_bavail), size: bytes(disk.f_blocks) })
    }
}

#[derive(Debug)]
struct Process {
    /// Seconds since 1970.
    started: f64,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        let mut cpu = encoder.encode_descriptor("process_cpu_seconds", "CPU time of all threads", None, MetricType::Counter)?;
        cpu.encode_counter::<NoLabelSet, _, f64>(&cpu_seconds, None)?;
        let (resident, virtual_) = memory_bytes();
        let descriptors_max = getrlimit(Resource::Nofile).current;
        let gauges = [
            ("process_start_time_seconds", "When the process started, in seconds since 1970", Some(self.started)),
            ("process_resident_memory_bytes", "Memory that the process holds", resident),
            ("process_virtual_memory_bytes", "Addresses that the process has reserved", virtual_),
            ("process_open_fds", "File descriptors open now", open_descriptors()),
            ("process_max_fds", "The most file descriptors that the process may open", descriptors_max.map(|most| most as f64)),
        ];
        encode_gauges(&mut encoder, &gauges)
    }
}

#[derive(Debug)]
struct DiskSpace {
    folder: PathBuf,
}

impl Collector for DiskSpace {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(DiskRoom { free, size }) = DiskRoom::of(&self.folder) else { return Ok(()) };
        let gauges = [
            ("disk_free_bytes", "Room left for this process on the disk with the data", Some(free as f64)),
            ("disk_size_bytes", "Size of the disk with the data", Some(size as f64)),
        ];
        encode_gauges(&mut encoder, &gauges)
    }
}

/// What cannot be read is left out.
fn encode_gauges(encoder: &mut DescriptorEncoder<'_>, gauges: &[(&str, &str, Option<f64>)]) -> Result<(), std::fmt::Error> {
    for (name, help, value) in gauges {
        if let Some(value) = value {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(value)?;
        }
    }
    Ok(())
}

/// Resident and virtual memory.
fn memory_bytes() -> (Option<f64>, Option<f64>) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kibibytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<f64>().ok()
    };
    (kibibytes("VmRSS").map(|count| count * 1_024.0), kibibytes("VmSize").map(|count| count * 1_024.0))
}

/// Counting opens one more, for the folder that lists them.
fn open_descriptors() -> Option<f64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_time_memory_descriptors_and_disk() {
        let metrics = Metrics::default();
        show_process(&metrics, "1.2.3");
        show_disk(&metrics, std::env::temp_dir());
        let text = metrics.to_text();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
        };
        assert!(value("process_cpu_seconds_total") > 0.0);
        assert!(value("process_start_time_seconds") > 1.6e9);
        assert!(value("process_resident_memory_bytes") > 1e6 && value("process_virtual_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds"));
        assert!(value("bezant_disk_free_bytes") <= value("bezant_disk_size_bytes"));
        assert!(text.contains("bezant_build_info{version=\"1.2.3\"} 1"), "{text}");
    }
}
