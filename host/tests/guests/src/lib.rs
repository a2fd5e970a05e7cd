//! The guest of most tests. The variable `BEHAVIOUR` selects what it does.

#![allow(clippy::disallowed_methods, reason = "a guest has one clock")]

mod compute;
mod turning;

use std::hint::black_box;
use std::process;
use std::time::{Duration, Instant, UNIX_EPOCH};

use baton_sdk::{Failure, Term};
use imports::wasi::config::store;
use imports::wasi::logging::logging::{Level, log};

/// WASI interfaces that a coordinator may import, but that the SDK does not use.
mod imports {
    #![allow(missing_docs, reason = "generated")]
    wit_bindgen::generate!({
        inline: "
            package fixtures:guests;

            world imports {
                import wasi:config/store@0.2.0-rc.1;
                import wasi:logging/logging@0.1.0-draft;
            }

            package wasi:config@0.2.0-rc.1 {
                interface store {
                    variant error { upstream(string), io(string) }
                    get: func(key: string) -> result<option<string>, error>;
                    get-all: func() -> result<list<tuple<string, string>>, error>;
                }
            }

            package wasi:logging@0.1.0-draft {
                interface logging {
                    enum level { trace, debug, info, warn, error, critical }
                    log: func(level: level, context: string, message: string);
                }
            }
        ",
        generate_all,
    });
}

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    let behaviour = variable("BEHAVIOUR").unwrap_or_else(|| "beat".to_owned());
    println!("{behaviour} in term {}", term.number());
    match behaviour.as_str() {
        "beat" => beat(term),
        "done" => Ok(()),
        "retryable" => Err(Failure::retryable("try me again")),
        "fatal" => Err(Failure::fatal("not here")),
        "panic" => panic!("this guest panics"),
        "exit" => process::exit(number("STATUS", 3)),
        "busy" => spin(),
        "mutter" => mutter(term),
        "sleep" => {
            std::thread::sleep(Duration::from_secs(1_000_000));
            Ok(())
        }
        "compute" => {
            let begin = Instant::now();
            let mixed = compute::primes(black_box(number("LIMIT", 1)));
            println!("{} {mixed}", begin.elapsed().as_nanos());
            Ok(())
        }
        "tight" => {
            let begin = Instant::now();
            let turned = turning::turn_over(black_box(number("TIMES", 1)));
            println!("{} {turned}", begin.elapsed().as_nanos());
            Ok(())
        }
        "allocate" => {
            let mut kept = Vec::new();
            loop {
                kept.push(vec![1_u8; 1 << 20]);
                black_box(&kept);
            }
        }
        "touch" => {
            let memory = vec![1_u8; number::<usize>("TOUCH_MIB", 1) << 20];
            println!("touched {} bytes", black_box(&memory).len());
            spin()
        }
        "recurse" => {
            println!("{}", recurse(black_box(1)));
            Ok(())
        }
        // The message has the maximum length that the host accepts. The SDK adds no line number to the message, because
        // `Failure::fatal` is called through `map`.
        "long-failure" => {
            let [failure] = ["x".repeat(1 << 20)].map(Failure::fatal);
            Err(failure)
        }
        "flood" => loop {
            println!("{}", "x".repeat(100));
        },
        "flood-then-busy" => {
            (0..1000).for_each(|_| println!("{}", "x".repeat(100)));
            spin()
        }
        "step-down" => {
            term.step_down("this guest wants to");
            beat(term)
        }
        "long-reason" => {
            term.step_down(&"x".repeat(number("REASON_BYTES", 8 << 20)));
            println!("the host took it");
            beat(term)
        }
        "refused" => refused(term),
        "config" => {
            let variables = std::env::vars().map(|(name, value)| format!("variable {name}={value}"));
            let stored = store::get_all().map_err(|error| Failure::fatal(format!("{error:?}")))?;
            let stored = stored.into_iter().map(|(name, value)| format!("config {name}={value}"));
            // Print all values in one line, so that a test that has received the line has all of them.
            let times = [("scheduled for", term.scheduled_for()), ("last completed", term.last_completed())];
            let times = times.into_iter().filter_map(|(name, time)| {
                let seconds = time?.duration_since(UNIX_EPOCH).ok()?.as_secs();
                Some(format!("{name} {seconds}"))
            });
            let shard = term.shard();
            let shard = std::iter::once(format!("shard {} of {}", shard.index, shard.count));
            println!("{}", variables.chain(stored).chain(times).chain(shard).collect::<Vec<_>>().join("; "));
            Ok(())
        }
        "log" => {
            use Level::{Critical, Debug, Error, Info, Trace, Warn};
            let levels = [Trace, Debug, Info, Warn, Error, Critical];
            let mut messages = levels.map(|level| (level, "billing".to_owned(), format!("this is {level:?}"))).to_vec();
            messages.push((Info, String::new(), "no context".to_owned()));
            messages.push((Info, "c".repeat(1000), format!("two\nlines and {}", "x".repeat(100_000))));
            for (level, context, message) in messages {
                // The tests' journal drops similar lines that come within 10 ms.
                std::thread::sleep(Duration::from_millis(15));
                log(level, &context, &message);
            }
            std::thread::sleep(Duration::from_millis(15));
            beat(term)
        }
        "flood-log" => loop {
            log(Level::Debug, "flood", &"x".repeat(100));
            println!("{}", "y".repeat(100));
            eprintln!("{}", "z".repeat(100));
        },
        "gigabyte" => {
            use std::io::Write;
            // Print half of the gigabyte in lines, and the other half without line ends. Each write is as long as one
            // call to the host can be.
            for text in [format!("{}\n", "x".repeat(99)).repeat(600), "y".repeat(60_000)] {
                (0..(1 << 29) / text.len()).try_for_each(|_| std::io::stdout().lock().write_all(text.as_bytes()))?;
            }
            println!();
            std::thread::sleep(Duration::from_secs(2));
            println!("1 GiB is written");
            beat(term)
        }
        "files" => {
            for call in variable("SCRIPT").unwrap_or_default().split(';') {
                println!("{}: {}", call.trim(), on_file(call.trim()).unwrap_or_else(|error| format!("error: {error}")));
                // The tests' journal drops similar lines that come within 10 ms.
                std::thread::sleep(Duration::from_millis(15));
            }
            beat(term)
        }
        "appends" => {
            use std::io::Write;
            let mut file = std::fs::File::options().append(true).create(true).open("/data/log")?;
            println!("appending");
            loop {
                if let Err(error) = file.write_all(b"still allowed\n") {
                    return Err(Failure::fatal(format!("refused: {error}")));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        unknown => Err(Failure::fatal(format!("no behaviour is called `{unknown}`"))),
    }
}

/// Prints a line every `BEAT_MS` until it receives a stop request.
fn beat(term: &Term) -> baton_sdk::Result {
    let every = Duration::from_millis(number("BEAT_MS", 100));
    let mut beat = 0_u64;
    loop {
        beat += 1;
        println!("beat {beat} of term {}", term.number());
        if let Err(stop) = term.sleep(every) {
            println!("stop: {:?}", stop.reason());
            return Ok(());
        }
    }
}

/// Prints lines forever, even after a stop request. The guest prints the end of each line one beat after the start of
/// the line. The last line is therefore incomplete whenever the host kills the guest.
fn mutter(term: &Term) -> ! {
    use std::io::Write;
    for beat in 1_u64.. {
        print!("beat {beat} of term {}", term.number());
        let _ = std::io::stdout().flush();
        std::thread::sleep(Duration::from_millis(number("BEAT_MS", 100)));
        println!(", and nobody stops it");
    }
    process::exit(0)
}

/// Writes until the host refuses a write. Then returns the error as a failure instead of trapping.
fn refused(term: &Term) -> baton_sdk::Result {
    use std::io::Write;
    loop {
        let mut out = std::io::stdout().lock();
        if let Err(error) = writeln!(out, "still allowed").and_then(|()| out.flush()) {
            return Err(Failure::fatal(format!("refused: {error}")));
        }
        let _ = term.check();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a file operation of the form `CALL PATH REST`.
fn on_file(call: &str) -> std::io::Result<String> {
    use std::fs;
    use std::io::Write;
    let mut words = call.splitn(3, ' ');
    let (call, path, rest) =
        (words.next().unwrap_or_default(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
    match call {
        "read" => fs::read_to_string(path),
        "write" => fs::write(path, rest).map(|()| "ok".to_owned()),
        "append" => fs::File::options().append(true).open(path)?.write_all(rest.as_bytes()).map(|()| "ok".to_owned()),
        "rename" => fs::rename(path, rest).map(|()| "ok".to_owned()),
        #[expect(deprecated, reason = "the replacements distinguish links to files from links to folders")]
        "link" => fs::soft_link(rest, path).map(|()| "ok".to_owned()),
        "remove" => fs::remove_file(path).map(|()| "ok".to_owned()),
        "mkdir" => fs::create_dir(path).map(|()| "ok".to_owned()),
        "keep" => {
            // Keeps the handles open until the instance ends.
            (0..rest.parse().unwrap_or(0)).try_for_each(|_| fs::File::open(path).map(std::mem::forget))?;
            Ok("ok".to_owned())
        }
        "list" => {
            let names = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name().display().to_string()));
            let mut names: Vec<String> = names.collect::<Result<_, _>>()?;
            names.sort();
            Ok(names.join(" "))
        }
        "set-times" => set_times(path, rest, 0),
        "set-own-times" => set_times(path, rest, SYMLINK_NOFOLLOW),
        unknown => Err(std::io::Error::other(format!("no call is called `{unknown}`"))),
    }
}

/// `AT_SYMLINK_NOFOLLOW` of wasi-libc.
const SYMLINK_NOFOLLOW: i32 = 1;

/// Sets the access and modification times of the file at `path`, in seconds since 1970. The standard library can only
/// set the times of open files.
#[cfg(target_family = "wasm")]
fn set_times(path: &str, seconds: &str, flags: i32) -> std::io::Result<String> {
    /// `struct timespec` of wasi-libc.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Time {
        seconds: i64,
        nanoseconds: i32,
    }
    unsafe extern "C" {
        fn utimensat(folder: i32, path: *const std::ffi::c_char, times: *const [Time; 2], flags: i32) -> i32;
    }
    /// `AT_FDCWD` of wasi-libc.
    const HERE: i32 = -2;
    let path = std::ffi::CString::new(path)?;
    let time = Time { seconds: seconds.parse().unwrap_or(0), nanoseconds: 0 };
    // SAFETY: the path ends with NUL, there are two times, and both outlive the call.
    match unsafe { utimensat(HERE, path.as_ptr(), &[time, time], flags) } {
        0 => Ok("ok".to_owned()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(not(target_family = "wasm"))]
fn set_times(_: &str, _: &str, _: i32) -> std::io::Result<String> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn spin() -> ! {
    let mut n = 0_u64;
    loop {
        n = black_box(n.wrapping_add(1));
    }
}

#[expect(unconditional_recursion, reason = "it overflows the stack on purpose")]
fn recurse(n: u64) -> u64 {
    let kept = black_box([n; 64]);
    recurse(black_box(n + 1)) + kept[0]
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    variable(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}
