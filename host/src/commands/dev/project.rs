//! A project under development: the command that builds it, and the file that the build writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::commands::new::{JS_BUILD, PYTHON_BUILD, PYTHON_SETUP, RUST_BUILD, RUST_TARGET};

const OFF: &str = "off";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Project {
    /// The command line that builds the project, run in its folder. `None` if something other than Baton builds the
    /// module.
    pub build: Option<String>,
    /// The file that the build writes, if the project's files determine it.
    pub module: Option<PathBuf>,
    pub target: Option<PathBuf>,
}

impl Project {
    /// Determines how to build the project in the folder. If `build` is given, it is the build command, or `off`.
    /// Otherwise, this function fails if the kind of project is unknown, or if something that the build needs is
    /// missing.
    pub fn find(folder: &Path, build: Option<&str>) -> anyhow::Result<Self> {
        let others = |build: &str| Self { build: Some(build.to_owned()), module: None, target: None };
        match build {
            Some(OFF) => return Ok(Self { build: None, ..others("") }),
            Some(build) => return Ok(others(build)),
            None => {}
        }
        if folder.join("Cargo.toml").exists() {
            return rust(folder);
        }
        if has_build_script(&folder.join("package.json"))? {
            if !folder.join("node_modules").exists() {
                bail!("{} has no node_modules yet: run `npm install` there", folder.display());
            }
            return Ok(others(JS_BUILD));
        }
        let requirements = fs::read_to_string(folder.join("requirements.txt")).unwrap_or_default();
        if requirements.contains("componentize-py") && folder.join("app.py").exists() {
            if !folder.join(".venv").exists() {
                bail!("{} has no .venv yet: run `{}` there", folder.display(), PYTHON_SETUP.join(" && "));
            }
            return Ok(others(PYTHON_BUILD));
        }
        bail!(
            "cannot tell how to build {}: it has no Cargo.toml, no package.json with a script `build`, and no app.py \
             with componentize-py in its requirements.txt; name the build command with `--build` and the file that it \
             writes with `--module`, or start a project with `baton new NAME`",
            folder.display()
        )
    }
}

fn has_build_script(manifest: &Path) -> anyhow::Result<bool> {
    #[derive(Deserialize)]
    struct Manifest {
        #[serde(default)]
        scripts: serde_json::Map<String, serde_json::Value>,
    }
    let Ok(text) = fs::read_to_string(manifest) else { return Ok(false) };
    let manifest: Manifest =
        serde_json::from_str(&text).with_context(|| format!("{} cannot be read", manifest.display()))?;
    Ok(manifest.scripts.contains_key("build"))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

fn rust(folder: &Path) -> anyhow::Result<Project> {
    let manifest = fs::canonicalize(folder.join("Cargo.toml"))?;
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(&manifest);
    let output = cargo.stdin(Stdio::null()).output().context("cannot start cargo, which builds projects in Rust")?;
    if !output.status.success() {
        bail!("cargo cannot read {}: {}", manifest.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let Metadata { packages, target_directory } =
        serde_json::from_slice(&output.stdout).context("cannot parse the output of `cargo metadata`")?;
    let is_this_one = |package: &Package| fs::canonicalize(&package.manifest_path).is_ok_and(|path| path == manifest);
    let Some(package) = packages.into_iter().find(is_this_one) else {
        bail!("{} is a workspace: name the folder of one of its packages", manifest.display());
    };
    let file = package.module().with_context(|| format!("in {}", manifest.display()))?;
    Ok(Project {
        build: Some(RUST_BUILD.to_owned()),
        module: Some(target_directory.join(RUST_TARGET).join("release").join(file)),
        target: Some(target_directory),
    })
}

impl Package {
    fn module(&self) -> anyhow::Result<String> {
        let names = |kind: &str| {
            let of_kind = |target: &&Target| target.kind.iter().any(|other| other == kind);
            self.targets.iter().filter(of_kind).map(|target| target.name.clone()).collect::<Vec<_>>()
        };
        // Cargo names the output file of a library after the crate, and the output file of a program after the program.
        if let [library] = &names("cdylib")[..] {
            return Ok(format!("{}.wasm", library.replace('-', "_")));
        }
        match &names("bin")[..] {
            [program] => Ok(format!("{program}.wasm")),
            [] => {
                bail!(
                    "the package builds nothing that can run: make it a program, or a library of type cdylib \
                     (`crate-type = [\"cdylib\"]`)"
                )
            }
            programs => bail!(
                "the package has several programs, {}: choose one with `--build '{RUST_BUILD} --bin NAME'`, and name \
                 its file with `--module`",
                programs.join(" or ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (place, text) in files {
            let place = folder.path().join(place);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        }
        folder
    }

    fn find_error(files: &[(&str, &str)]) -> String {
        format!("{:#}", Project::find(project(files).path(), None).unwrap_err())
    }

    #[test]
    fn rust_project_determines_its_build_and_module() {
        let manifest = "[package]\nname = 'my-job'\nedition = '2024'\n";
        let library = ("src/lib.rs", "");
        let cdylib = format!("{manifest}[lib]\ncrate-type = ['cdylib']\n");
        let folder = project(&[("Cargo.toml", &cdylib), library]);
        let found = Project::find(folder.path(), None).unwrap();
        assert_eq!(found.build.unwrap(), "cargo build --release --target wasm32-wasip2");
        let (target, module) = (found.target.unwrap(), found.module.unwrap());
        assert_eq!(module, target.join("wasm32-wasip2/release/my_job.wasm"));

        let folder = project(&[("Cargo.toml", manifest), ("src/main.rs", "fn main() {}")]);
        let module = Project::find(folder.path(), None).unwrap().module.unwrap();
        assert!(module.ends_with("release/my-job.wasm"), "{module:?}");

        assert!(find_error(&[("Cargo.toml", manifest), library]).contains("crate-type = [\"cdylib\"]"));
        let two = [("Cargo.toml", manifest), ("src/bin/a.rs", ""), ("src/bin/b.rs", "")];
        assert!(find_error(&two).contains("several programs, a or b"), "{}", find_error(&two));
        assert!(find_error(&[("Cargo.toml", "[workspace]")]).contains("name the folder of one of its packages"));
        assert!(find_error(&[("Cargo.toml", "[package")]).contains("Cargo.toml: error"));
    }

    #[test]
    fn missing_build_requirement_is_an_error_that_says_what_to_do() {
        let js = ("package.json", r#"{"scripts": {"build": "componentize-js"}}"#);
        assert!(find_error(&[js]).contains("run `npm install` there"));
        let found = Project::find(project(&[js, ("node_modules/x", "")]).path(), None).unwrap();
        assert_eq!((found.build.as_deref(), found.module), (Some("npm run build"), None));

        let python = [("requirements.txt", "componentize-py==0.25.1\n"), ("app.py", "")];
        assert!(
            find_error(&python).contains("run `python3 -m venv .venv && .venv/bin/pip install"),
            "{}",
            find_error(&python)
        );
        let found = Project::find(project(&[python[0], python[1], (".venv/x", "")]).path(), None).unwrap();
        assert!(found.build.unwrap().starts_with(".venv/bin/componentize-py"));

        assert!(find_error(&[("package.json", "{}")]).contains("cannot tell how to build"));
        assert!(find_error(&[("package.json", "{")]).contains("package.json cannot be read"));
    }

    #[test]
    fn build_flag_works_without_a_known_project() {
        let folder = project(&[]);
        let found = Project::find(folder.path(), Some("make")).unwrap();
        assert_eq!(found, Project { build: Some("make".to_owned()), module: None, target: None });
        assert_eq!(Project::find(folder.path(), Some("off")).unwrap().build, None);
    }
}
