//! Tests of the compiler, which runs in its own process.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use baton_modules::{Compiler, PrepareError, Preparer, inspect};
use baton_runtime::{LARGEST_MODULE, ModuleError, ModuleKind};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::modules::{command, component, core_command, slow};
use super::patience::Patience;
use super::{offer, preparer, program};

/// More CPU time than any compilation in these tests needs.
const ENOUGH: Duration = Duration::from_secs(60);

fn script(lines: &str) -> (TempDir, Preparer) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("compiler");
    std::fs::write(&path, format!("#!/bin/sh\ncd {}\n{lines}\n", folder.path().display())).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    (folder, Preparer { compiler: Compiler::in_program(path), ..preparer() })
}

/// A preparer whose compiler writes its pid to the file `pid` before it compiles.
fn with_pid_file() -> (TempDir, Preparer) {
    script(&format!("echo $$ >pid.new; mv pid.new pid; exec {} \"$@\"", program().display()))
}

/// Waits until a compiler has written its pid to `folder`. Returns the compiler's folder in `/proc`.
async fn process(folder: &Path) -> PathBuf {
    until("the compiler has started", || std::fs::read_to_string(folder.join("pid")).is_ok()).await;
    Path::new("/proc").join(std::fs::read_to_string(folder.join("pid")).unwrap().trim())
}

async fn until(what: &str, reached: impl Fn() -> bool) {
    let reaching = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Patience::of_future(reaching).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

/// Returns true if a process is running. A zombie does not count.
fn runs(process: &Path) -> bool {
    let state = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    state.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

async fn refused(preparer: &Preparer, bytes: Vec<u8>) -> PrepareError {
    preparer.prepare(&offer(bytes)).await.err().unwrap()
}

#[tokio::test]
async fn offer_is_compiled_to_a_module() {
    let prepared = preparer().prepare(&offer(command(1))).await.unwrap();
    assert_eq!(prepared.module.kind(), ModuleKind::Command);
    assert!(!prepared.cached);
    assert_eq!(prepared.module.size(), command(1).len() as u64);
    assert_eq!(prepared.module.digest(), baton_store::Digest::of(&command(1)));
}

#[tokio::test]
async fn core_module_is_wrapped_by_compiler() {
    let prepared = preparer().prepare(&offer(core_command())).await.unwrap();
    assert_eq!(prepared.module.kind(), ModuleKind::Command);
    assert_eq!(prepared.module.digest(), baton_store::Digest::of(&core_command()));
}

#[tokio::test]
async fn invalid_module_is_refused_without_compiling() {
    let preparer = Preparer { compiler: Compiler::in_program("/nowhere/baton".into()), ..preparer() };
    let huge = vec![0; usize::try_from(LARGEST_MODULE).unwrap() + 1];
    let size = huge.len() as u64;
    assert!(matches!(refused(&preparer, huge).await, PrepareError::TooLarge(found) if found == size));
    let unusable = async |bytes| match refused(&preparer, bytes).await {
        PrepareError::Unusable(error) => error,
        other => panic!("{other}"),
    };
    assert!(matches!(unusable(Vec::new()).await, ModuleError::Empty(_)));
    for other in [&b"a text"[..], b"\x7fELF\x02\x01\x01\xc8 compiled code of others"] {
        assert!(matches!(unusable(other.to_vec()).await, ModuleError::NotWasm(_)));
    }
    for version in ["0.0.9", "0.1.2", "0.2.0"] {
        let error = unusable(component("", &format!("baton:host/task@{version}"))).await.to_string();
        for part in [version, "0.1.1", "baton:host", "sha256:"] {
            assert!(error.contains(part), "{part} is not in {error:?}");
        }
    }
}

#[tokio::test]
async fn compiler_reports_damaged_modules() {
    let whole = command(1);
    let mut flipped = whole.clone();
    // This byte belongs to the preamble of the core module inside the component.
    flipped[11] = 0x7f;
    for damaged in [whole[..whole.len() - 1].to_vec(), whole[..20].to_vec(), flipped, b"\0asm\x01\0\0\0".to_vec()] {
        match refused(&preparer(), damaged).await {
            PrepareError::Refused(why) => assert!(why.contains("module sha256:") && !why.contains('\n'), "{why}"),
            PrepareError::Unusable(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn compiler_refuses_component_that_needs_gigabytes() {
    match refused(&preparer(), bomb()).await {
        PrepareError::Refused(why) => assert!(why.contains("steps"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// A component with 18 nested levels, each of which is instantiated twice by the level around it. The host would have
/// to count 2^18 instances.
fn bomb() -> Vec<u8> {
    let innermost = "(component (core module $m) (core instance (instantiate $m)) (core instance (instantiate $m)))";
    let nested = (0..17).fold(innermost.to_owned(), |inner, _| {
        let inner = inner.replacen("(component", "(component $c", 1);
        format!("(component {inner} (instance (instantiate $c)) (instance $i (instantiate $c)))")
    });
    let bomb = format!("{} (export \"wasi:cli/run@0.2.0\" (instance $i)))", &nested[..nested.len() - 1]);
    wat::parse_str(bomb).unwrap()
}

#[tokio::test]
async fn compilation_stops_at_its_cpu_limit() {
    let (folder, mut preparer) = with_pid_file();
    preparer.compile_timeout = Duration::from_millis(1500);
    let refused = refused(&preparer, slow()).await;
    assert!(matches!(refused, PrepareError::TooSlow(_)) && !refused.may_pass(), "{refused}");
    assert!(refused.to_string().contains("--compile-timeout"), "{refused}");
    assert!(!runs(&process(folder.path()).await));
    // The failure does not break the preparer: with a higher limit, it compiles another module.
    preparer.compile_timeout = ENOUGH;
    preparer.prepare(&offer(command(1))).await.unwrap();
}

#[tokio::test]
async fn slow_module_does_not_delay_others() {
    let (folder, mut preparer) = with_pid_file();
    preparer.compile_timeout = Duration::from_secs(600);
    let neighbour = preparer.clone();
    let task = tokio::spawn(async move { preparer.prepare(&offer(slow())).await.err() });
    let busy = process(folder.path()).await;
    let prepared = Patience::of_future(neighbour.prepare(&offer(command(1)))).await.expect("it need not wait");
    assert!(prepared.is_ok() && runs(&busy), "{:?}", prepared.err());
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
}

/// Simulates a busy machine by stopping the compiler, because a stopped process gets no CPU time, either.
#[tokio::test]
async fn module_is_not_blamed_when_machine_is_too_busy() {
    // The compiler process stops itself when it starts. The test continues the process only after a time that exceeds
    // the compile timeout.
    let stopped = "echo $$ >pid.new; mv pid.new pid; kill -STOP $$;";
    let (folder, mut preparer) = script(&format!("{stopped} exec {} \"$@\"", program().display()));
    preparer.compile_timeout = Duration::from_secs(2);
    let task = tokio::spawn(async move { preparer.prepare(&offer(command(1))).await.err() });
    let compiler = process(folder.path()).await;
    let state = || std::fs::read_to_string(compiler.join("stat")).unwrap_or_default();
    until("the compiler has stopped", || state().rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let compiler = compiler.file_name().unwrap().to_str().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(compiler).unwrap(), Signal::CONT).unwrap();
    let error = task.await.unwrap();
    assert!(error.is_none(), "{error:?}");

    let (_folder, mut preparer) = script("exec sleep 600");
    preparer.compile_timeout = Duration::from_millis(100);
    preparer.compiler = preparer.compiler.with_min_lifetime(Duration::from_secs(1));
    let refused = refused(&preparer, command(1)).await;
    assert!(matches!(refused, PrepareError::Starved { .. }) && refused.may_pass(), "{refused}");
    for word in ["1s", "100ms", "--compile-timeout", "busy"] {
        assert!(refused.to_string().contains(word), "{word} is not in {refused}");
    }
}

#[tokio::test]
async fn inspect_uses_the_same_compiler() {
    let compiler = Compiler::in_program(program());
    let inspect = async |bytes: Vec<u8>, within| inspect(&compiler, "-x y.wasm", &bytes.into(), within).await;
    let found = inspect(command(1), ENOUGH).await.unwrap();
    assert!(found.runs && found.module == "-x y.wasm" && found.kind == Some(ModuleKind::Command), "{found:?}");
    assert_eq!(found.digest, baton_store::Digest::of(&command(1)));
    let found = inspect(core_command(), ENOUGH).await.unwrap();
    assert!(found.runs && found.wrapped.is_some() && found.imports.iter().all(|import| import.granted), "{found:?}");
    // `inspect` also describes a module that cannot run.
    let found = inspect(component("", "baton:host/task@0.2.0"), ENOUGH).await.unwrap();
    assert!(!found.runs && found.exports == ["baton:host/task@0.2.0"] && found.problems.len() == 1, "{found:?}");
    for (bad, says) in [(bomb(), "steps"), (b"no module".to_vec(), "-x y.wasm is not WebAssembly")] {
        let refused = inspect(bad, ENOUGH).await.unwrap_err();
        assert!(matches!(&refused, PrepareError::Refused(why) if why.contains(says)), "{refused:?}");
    }
    let refused = inspect(slow(), Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(refused, PrepareError::TooSlow(_)), "{refused:?}");
}

#[test]
fn check_and_push_obey_compile_timeout() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("slow.wasm"), slow()).unwrap();
    std::fs::write(folder.path().join("baton.toml"), "compile-timeout = '400ms'\n").unwrap();
    for (arguments, says) in [
        (&["check", "slow.wasm"][..], "400ms"),
        (&["push", "slow.wasm", "job"], "400ms"),
        (&["push", "slow.wasm", "job", "--compile-timeout=500ms"], "500ms"),
    ] {
        let mut baton = Command::new(program());
        let ended = baton.args(arguments).current_dir(folder.path()).env("HOME", folder.path()).output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{stderr}");
        for word in ["slow.wasm", says, "--compile-timeout"] {
            assert!(stderr.contains(word), "{word} is not in {stderr}");
        }
    }
    assert!(!folder.path().join(".local").exists(), "nothing is stored");
}

#[tokio::test]
async fn compiler_ends_when_future_is_dropped() {
    // This compiler does not notice that its input has been closed, so it ends only if something kills it.
    let (folder, preparer) = script("echo $$ >pid.new; mv pid.new pid; exec sleep 600");
    let task = tokio::spawn(async move { preparer.prepare(&offer(command(1))).await.err() });
    let process = process(folder.path()).await;
    assert!(runs(&process));
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    until("the compiler has ended", || !runs(&process)).await;
}

#[tokio::test]
async fn compiler_process_has_limits() {
    let (folder, preparer) = with_pid_file();
    let task = tokio::spawn(async move { preparer.prepare(&offer(slow())).await.err() });
    let process = process(folder.path()).await;
    let limits = || std::fs::read_to_string(process.join("limits")).unwrap_or_default();
    let limited = |name: &str, most: &str| {
        let limits = limits();
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().take(2).eq([most, most])
    };
    until("its memory is limited", || limited("Max address space", "4294967296")).await;
    until("no cores are dumped", || limited("Max core file size", "0")).await;
    assert!(!limits().lines().any(|line| line.starts_with("Max cpu time") && line.contains("unlimited")));
    // The nice value is the 19th field of `stat`. The last parenthesis ends the second field, so it is the 17th field
    // after that.
    let nice = || {
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(16)?.parse().ok()).unwrap_or(0)
    };
    until("it is nice", || nice() >= 10).await;
    let variables = std::fs::read_to_string(process.join("environ")).unwrap();
    assert!(!variables.contains("CARGO"), "{variables}");
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
}

#[test]
fn compiler_exits_when_its_parent_dies() {
    let bytes = slow();
    let mut child = Command::new(program())
        .args(["compile-module", "--cpu", "10m", "--size", &bytes.len().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&bytes).unwrap();
    drop(stdin);
    let status = Patience::poll(Duration::from_millis(5), || child.try_wait().unwrap()).unwrap_or_else(|_| {
        child.kill().unwrap();
        panic!("the compiler runs on without its parent");
    });
    assert!(!status.success(), "it has compiled the module");
}

#[tokio::test]
async fn broken_compiler_is_reported_with_its_cause() {
    for (lines, says) in [
        ("kill -SEGV $$", "signal: 11"),
        ("echo memory allocation of 99 bytes failed >&2; kill -ABRT $$", "memory"),
        ("echo oh no >&2; exit 7", "oh no"),
        ("echo this is no code of this module, nor of another one", "damaged"),
        ("exit 0", "damaged"),
    ] {
        let (_folder, preparer) = script(lines);
        let refused = refused(&preparer, command(1)).await;
        assert!(matches!(refused, PrepareError::Broken(_)), "{lines}: {refused:?}");
        assert!(refused.to_string().contains(says), "{lines}: {refused}");
    }
    // Simulates the OOM killer of the kernel, which sends SIGKILL if a container has less memory than a compiler may
    // use.
    let (_folder, preparer) = script("kill -9 $$");
    let killed = refused(&preparer, command(1)).await;
    assert!(matches!(killed, PrepareError::Killed) && killed.may_pass(), "{killed:?}");
    assert!(killed.to_string().contains("ran out of memory"), "{killed}");
    let (_folder, preparer) = script("echo the module is bad >&2; exit 3");
    assert!(matches!(refused(&preparer, command(1)).await, PrepareError::Refused(why) if why == "the module is bad"));
    let (_folder, preparer) = script("while :; do echo too much to say >&2; done");
    let compiler = preparer.compiler.clone().with_min_lifetime(Duration::from_secs(1));
    let preparer = Preparer { compile_timeout: Duration::from_millis(100), compiler, ..preparer };
    assert!(matches!(refused(&preparer, command(1)).await, PrepareError::Starved { .. }));
    // If the kernel ends the compiler with SIGXCPU, the preparer reports the same error as for a compiler that notices
    // its CPU limit itself.
    let (_folder, preparer) = script("kill -XCPU $$");
    assert!(matches!(refused(&preparer, command(1)).await, PrepareError::TooSlow(_)));
}
