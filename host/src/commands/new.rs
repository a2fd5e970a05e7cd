//! `baton new`: writes a project to start from.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use baton_election::ElectionName;

use super::WrongConfiguration;
use crate::cli::{self, Lang};

/// Files by their places in the project, with `{{…}}` for what differs.
type Files = &'static [(&'static str, &'static str)];

/// Where `cargo` puts what it builds for the target of components, in its own folder.
pub(super) const RUST_TARGET: &str = "wasm32-wasip2";

/// What builds a project of each language, from its folder.
pub(super) const RUST_BUILD: &str = "cargo build --release --target wasm32-wasip2";
/// See [`RUST_BUILD`].
pub(super) const JS_BUILD: &str = "npm run build";
/// See [`RUST_BUILD`].
pub(super) const PYTHON_BUILD: &str =
    ".venv/bin/componentize-py -d wit -w coordinator componentize app -o coordinator.wasm";
/// What that one needs first.
pub(super) const PYTHON_SETUP: [&str; 2] = ["python3 -m venv .venv", ".venv/bin/pip install -r requirements.txt"];

const RUST: Template = Template {
    what: "Rust",
    module: "target/wasm32-wasip2/release/coordinator.wasm",
    files: &[
        ("Cargo.toml", include_str!("../../templates/rust/manifest.toml")),
        ("src/lib.rs", include_str!("../../templates/rust/lib.rs")),
        ("README.md", include_str!("../../templates/rust/README.md")),
        (".gitignore", include_str!("../../templates/rust/gitignore")),
    ],
    commands: &["cargo test", "rustup target add wasm32-wasip2", RUST_BUILD, "baton run"],
};

const JS: Template = Template {
    what: "JavaScript",
    module: "coordinator.wasm",
    files: &[
        ("package.json", include_str!("../../templates/js/package.json")),
        ("coordinator.js", include_str!("../../templates/js/coordinator.js")),
        ("coordinator.test.js", include_str!("../../templates/js/coordinator.test.js")),
        ("main.js", include_str!("../../templates/js/main.js")),
        ("README.md", include_str!("../../templates/js/README.md")),
        (".gitignore", include_str!("../../templates/js/gitignore")),
    ],
    commands: &["npm install", "npm test", JS_BUILD, "baton run"],
};

const PYTHON: Template = Template {
    what: "Python",
    module: "coordinator.wasm",
    files: &[
        ("coordinator.py", include_str!("../../templates/python/coordinator.py")),
        ("test_coordinator.py", include_str!("../../templates/python/test_coordinator.py")),
        ("app.py", include_str!("../../templates/python/app.py")),
        ("requirements.txt", include_str!("../../templates/python/requirements.txt")),
        ("README.md", include_str!("../../templates/python/README.md")),
        (".gitignore", include_str!("../../templates/python/gitignore")),
    ],
    commands: &[PYTHON_SETUP[0], PYTHON_SETUP[1], ".venv/bin/python -m unittest", PYTHON_BUILD, "baton run"],
};

/// What all projects have.
const COMMON: Files = &[("baton.toml", include_str!("../../templates/baton.toml"))];

/// The contract, for languages without an SDK that brings it.
const CONTRACT: Files = &[
    ("wit/coordinator.wit", include_str!("../../templates/wit/coordinator.wit")),
    ("wit/deps/baton-host.wit", include_str!("../../../wit/world.wit")),
    ("wit/deps/wasi-clocks.wit", include_str!("../../templates/wit/clocks.wit")),
    ("wit/deps/wasi-io.wit", include_str!("../../../wit/deps/io.wit")),
];

struct Template {
    what: &'static str,
    /// Where the build puts the component.
    module: &'static str,
    files: Files,
    /// What tests, builds and runs it, from its folder.
    commands: &'static [&'static str],
}

/// Writes a project into a new folder of the working folder, and says how it is built, tested and run.
pub(super) fn new(name: &ElectionName, lang: Lang, sdk: Option<&Path>) -> anyhow::Result<ExitCode> {
    let template = match lang {
        Lang::Rust => RUST,
        Lang::Js => JS,
        Lang::Python => PYTHON,
    };
    let contract = if lang == Lang::Rust { &[][..] } else { CONTRACT };
    let sdk = if lang == Lang::Rust { sdk_folder(sdk)? } else { None };
    // The SDK's versions are the host's: both follow the contract.
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let dependency = match &sdk {
        Some(path) => format!("{{ path = {} }}", toml::Value::from(path.as_str())),
        None => format!("\"{version}\""),
    };
    let fill = |text: &str| {
        text.replace("{{name}}", name.as_str())
            .replace("{{module}}", template.module)
            .replace("{{commands}}", &template.commands.join("\n"))
            .replace("{{sdk}}", &dependency)
    };
    let folder = PathBuf::from(name.as_str());
    let files: Vec<_> = [template.files, COMMON, contract]
        .into_iter()
        .flatten()
        .map(|(place, text)| (folder.join(place), fill(text)))
        .collect();
    write(&folder, &files)?;

    let mut said = format!(
        "Wrote {name}: a coordinator in {} that beats once a second and counts its beats in the state.\n\n\
         Test, build and run it:\n\n  cd {name}\n",
        template.what
    );
    for command in template.commands {
        said.push_str(&format!("  {command}\n"));
    }
    match sdk {
        Some(path) => said.push_str(&format!("\nIt depends on baton-sdk in {path}.\n")),
        None if lang == Lang::Rust => said.push_str(
            "\nIt depends on baton-sdk from crates.io, where no version is yet: until then, take it from a checkout \
             of Baton,\nwith `--sdk PATH/TO/baton/guest-sdk`, or change the line in Cargo.toml.\n",
        ),
        None => {}
    }
    cli::print(&said)?;
    Ok(ExitCode::SUCCESS)
}

/// Where the SDK is: where the user says, else in the checkout that this program was built in.
fn sdk_folder(given: Option<&Path>) -> anyhow::Result<Option<String>> {
    if let Some(path) = given {
        let found = sdk_at(path).map_err(|why| {
            let path = path.display();
            WrongConfiguration::new(anyhow::anyhow!(
                "--sdk {path}: {why}; give it the folder guest-sdk of a checkout of Baton"
            ))
        })?;
        return Ok(Some(found));
    }
    // The program is in target/release or the like.
    let program = std::env::current_exe().ok();
    Ok(program.and_then(|program| sdk_at(&program.ancestors().nth(3)?.join("guest-sdk")).ok()))
}

/// The absolute path of the SDK, if that is what the folder is.
fn sdk_at(folder: &Path) -> Result<String, String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).map_err(|error| format!("its Cargo.toml: {error}"))?;
    let manifest: toml::Table = manifest.parse().map_err(|error| format!("its Cargo.toml: {error}"))?;
    let package = manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    if package != Some("baton-sdk") {
        return Err("this is not the package baton-sdk".to_owned());
    }
    let folder = fs::canonicalize(folder).map_err(|error| error.to_string())?;
    folder.into_os_string().into_string().map_err(|_| "its path is not UTF-8".to_owned())
}

/// Writes all files, or none if one of them is there already or cannot be written.
fn write(folder: &Path, files: &[(PathBuf, String)]) -> anyhow::Result<()> {
    for (place, _) in files {
        if place.symlink_metadata().is_ok() {
            bail!(
                "{} is there already, and nothing was written: choose another name, or move it away",
                place.display()
            );
        }
    }
    for (done, (place, text)) in files.iter().enumerate() {
        if let Err(error) = write_new(place, folder, text) {
            // Those of this run alone: what else is in the folder is not ours. One that stays is named next time.
            for (place, _) in &files[..done] {
                let _ = fs::remove_file(place);
            }
            return Err(error).with_context(|| {
                format!(
                    "cannot write {}, and nothing was written: see to it that it can be, and try again",
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
    // A part of it, as on a full disk, would be in the way.
    file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(place)))
}
