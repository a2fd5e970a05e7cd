//! `baton new`: creates a starter project.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use baton_election::ElectionName;

use crate::cli::{self, Lang};

/// The paths and the contents of a project's files. `{{…}}` is a placeholder.
type Files = &'static [(&'static str, &'static str)];

/// The build target for components, and the name of Cargo's output folder for it.
pub(super) const RUST_TARGET: &str = "wasm32-wasip2";

pub(super) const RUST_BUILD: &str = "cargo build --release --target wasm32-wasip2";
pub(super) const JS_BUILD: &str = "npm run build";
pub(super) const PYTHON_BUILD: &str =
    ".venv/bin/componentize-py -d wit -w coordinator componentize app -o coordinator.wasm";
pub(super) const PYTHON_SETUP: [&str; 2] = ["python3 -m venv .venv", ".venv/bin/pip install -r requirements.txt"];

const RUST: Template = Template {
    language: "Rust",
    module: "target/wasm32-wasip2/release/coordinator.wasm",
    files: &[
        ("Cargo.toml", include_str!("../../templates/rust/manifest.toml")),
        ("src/lib.rs", include_str!("../../templates/rust/lib.rs")),
        ("README.md", include_str!("../../templates/rust/README.md")),
        (".gitignore", include_str!("../../templates/rust/gitignore")),
    ],
    image: concat!("rust:", env!("CARGO_PKG_RUST_VERSION"), "-bookworm"),
    setup: "RUN rustup target add wasm32-wasip2\n",
    commands: &["rustup target add wasm32-wasip2", "cargo test", RUST_BUILD, "baton run"],
};

const JS: Template = Template {
    language: "JavaScript",
    module: "coordinator.wasm",
    files: &[
        ("package.json", include_str!("../../templates/js/package.json")),
        ("coordinator.js", include_str!("../../templates/js/coordinator.js")),
        ("coordinator.test.js", include_str!("../../templates/js/coordinator.test.js")),
        ("main.js", include_str!("../../templates/js/main.js")),
        ("README.md", include_str!("../../templates/js/README.md")),
        (".gitignore", include_str!("../../templates/js/gitignore")),
    ],
    image: "node:24-bookworm",
    setup: "",
    commands: &["npm install", "npm test", JS_BUILD, "baton run"],
};

const PYTHON: Template = Template {
    language: "Python",
    module: "coordinator.wasm",
    files: &[
        ("coordinator.py", include_str!("../../templates/python/coordinator.py")),
        ("test_coordinator.py", include_str!("../../templates/python/test_coordinator.py")),
        ("app.py", include_str!("../../templates/python/app.py")),
        ("http_client.py", include_str!("../../templates/python/http_client.py")),
        ("requirements.txt", include_str!("../../templates/python/requirements.txt")),
        ("README.md", include_str!("../../templates/python/README.md")),
        (".gitignore", include_str!("../../templates/python/gitignore")),
    ],
    image: "python:3.13-bookworm",
    setup: "",
    commands: &[PYTHON_SETUP[0], PYTHON_SETUP[1], ".venv/bin/python -m unittest", PYTHON_BUILD, "baton run"],
};

const COMMON: Files = &[
    ("baton.toml", include_str!("../../templates/baton.toml")),
    (".devcontainer/devcontainer.json", include_str!("../../templates/devcontainer/devcontainer.json")),
    (".devcontainer/Dockerfile", include_str!("../../templates/devcontainer/Dockerfile")),
];

/// Start of the release archive's URL. The Dockerfile appends the machine's architecture.
const RELEASE: &str = concat!(
    env!("CARGO_PKG_REPOSITORY"),
    "/releases/download/v",
    env!("CARGO_PKG_VERSION"),
    "/baton-",
    env!("CARGO_PKG_VERSION")
);

const CONTRACT: Files = &[
    ("wit/coordinator.wit", include_str!("../../templates/wit/coordinator.wit")),
    ("wit/deps/baton-host.wit", include_str!("../../../wit/world.wit")),
    ("wit/deps/wasi-cli.wit", include_str!("../../templates/wit/cli.wit")),
    ("wit/deps/wasi-clocks.wit", include_str!("../../templates/wit/clocks.wit")),
    ("wit/deps/wasi-http.wit", include_str!("../../templates/wit/http.wit")),
    ("wit/deps/wasi-io.wit", include_str!("../../templates/wit/io.wit")),
];

macro_rules! sdk {
    ($($file:literal)*) => {
        &[$((concat!("baton-sdk/", $file), include_str!(concat!("../../../guest-sdk/", $file)))),*]
    };
}

/// The SDK's sources. `baton new` copies them into Rust projects, because the SDK is not on crates.io yet.
const SDK: Files = sdk! {
    "src/async_term.rs" "src/failure.rs" "src/fake.rs" "src/host.rs" "src/http.rs" "src/lib.rs" "src/state.rs"
    "src/term.rs" "src/testing.rs" "wit/world.wit" "wit/deps/io.wit"
};
const SDK_MANIFEST: &str = include_str!("../../../guest-sdk/Cargo.toml");
/// The workspace manifest, from which the SDK's manifest inherits keys.
const WORKSPACE_MANIFEST: &str = include_str!("../../../Cargo.toml");

struct Template {
    language: &'static str,
    /// The file that the build writes, relative to the project.
    module: &'static str,
    files: Files,
    image: &'static str,
    /// Additional Dockerfile lines for the development container.
    setup: &'static str,
    /// The commands that test, build and run the project, to be run in its folder.
    commands: &'static [&'static str],
}

pub(super) fn new(name: &ElectionName, lang: Lang) -> anyhow::Result<ExitCode> {
    let template = match lang {
        Lang::Rust => RUST,
        Lang::Js => JS,
        Lang::Python => PYTHON,
    };
    let fill = |text: &str| {
        text.replace("{{name}}", name.as_str())
            .replace("{{module}}", template.module)
            .replace("{{image}}", template.image)
            .replace("{{setup}}", template.setup)
            .replace("{{release}}", RELEASE)
            .replace("{{commands}}", &template.commands.join("\n"))
    };
    let mut files: Vec<(&str, String)> =
        [template.files, COMMON].into_iter().flatten().map(|(place, text)| (*place, fill(text))).collect();
    let for_language = if lang == Lang::Rust { SDK } else { CONTRACT };
    files.extend(for_language.iter().map(|(place, text)| (*place, (*text).to_owned())));
    if lang == Lang::Rust {
        files.push(("baton-sdk/Cargo.toml", sdk_manifest(SDK_MANIFEST, WORKSPACE_MANIFEST)?));
    }
    let folder = PathBuf::from(name.as_str());
    let files: Vec<_> = files.into_iter().map(|(place, text)| (folder.join(place), text)).collect();
    write(&folder, &files)?;

    let mut written = format!(
        "Created {name}: a coordinator in {} that beats once a second and keeps the number of beats in its state.\n\n\
         Test, build and run it:\n\n  cd {name}\n",
        template.language
    );
    for command in template.commands {
        written.push_str(&format!("  {command}\n"));
    }
    written.push_str("\nWhile you work on it, `baton dev` rebuilds and restarts it whenever you save a file.\n");
    cli::print(&written)?;
    Ok(ExitCode::SUCCESS)
}

/// Adapts the SDK's manifest for use outside its workspace: fills in inherited keys, and removes the keys that only the
/// SDK's own tests need.
fn sdk_manifest(manifest: &str, workspace: &str) -> anyhow::Result<String> {
    let mut manifest: toml::Table = manifest.parse()?;
    let workspace: toml::Table = workspace.parse()?;
    for own in ["dev-dependencies", "example", "lints"] {
        manifest.remove(own);
    }
    for part in ["package", "dependencies"] {
        let inherited = workspace["workspace"][part].as_table();
        for (key, value) in manifest.get_mut(part).and_then(toml::Value::as_table_mut).into_iter().flatten() {
            let Some(own) = value.as_table().filter(|own| own.contains_key("workspace")) else { continue };
            let mut whole = inherited.and_then(|all| all.get(key)).with_context(|| format!("no {key}"))?.clone();
            if let Some(whole) = whole.as_table_mut() {
                whole.extend(own.clone());
                whole.remove("workspace");
            }
            *value = whole;
        }
    }
    Ok(manifest.to_string())
}

/// Writes all files. If any of them exists or cannot be written, writes none.
fn write(folder: &Path, files: &[(PathBuf, String)]) -> anyhow::Result<()> {
    for (place, _) in files {
        if place.symlink_metadata().is_ok() {
            bail!(
                "{} already exists, so nothing was written: choose another name, or move it out of the way",
                place.display()
            );
        }
    }
    for (done, (place, text)) in files.iter().enumerate() {
        if let Err(error) = write_new(place, folder, text) {
            // Remove only the files that this run wrote. If a file cannot be removed, the next run reports it.
            for (place, _) in &files[..done] {
                let _ = fs::remove_file(place);
            }
            return Err(error).with_context(|| {
                format!(
                    "cannot write {}, so the project was not created: fix the cause, then try again",
                    place.display()
                )
            });
        }
    }
    Ok(())
}

fn write_new(place: &Path, folder: &Path, text: &str) -> std::io::Result<()> {
    fs::create_dir_all(place.parent().unwrap_or(folder))?;
    let mut file = OpenOptions::new().write(true).create_new(true).open(place)?;
    // If the write fails, for example because the disk is full, remove the partial file: it would block the next run.
    file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(place)))
}
