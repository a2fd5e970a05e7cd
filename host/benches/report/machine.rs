//! The machine on which the numbers were measured.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Describes the processor, its cores, the memory, the kernel, the load, and the versions of the relevant software, one
/// per line.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let rows = [
        ("processor", format!("{}, {cores} cores", field("/proc/cpuinfo", "model name"))),
        ("memory", field("/proc/meminfo", "MemTotal")),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("load before", read("/proc/loadavg")),
        ("versions", versions()),
    ];
    rows.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<12} {value}");
        text
    })
}

fn versions() -> String {
    let baton = env!("CARGO_PKG_VERSION");
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string()).unwrap_or_default();
    format!("baton {baton}, wasmtime {}, sqlite {}, {rustc}", locked("wasmtime"), rusqlite::version())
}

fn locked(package: &str) -> String {
    let lock = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock")).unwrap_or_default();
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{package}\""));
    let version = lines.nth(1).and_then(|line| line.split('"').nth(1));
    version.unwrap_or("(unknown)").to_string()
}

/// Reads a file with lines of the form `NAME : VALUE`. Returns the first value with this name.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
    line.map_or_else(|| "(unknown)".to_string(), |(_, value)| value.trim().to_string())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "(unknown)".to_string(), |text| text.trim().to_string())
}
