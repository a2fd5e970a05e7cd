//! `baton dev`: builds a project, runs the module, and swaps in each new build.
//!
//! The command works like `baton run` with one node, a store in memory, and a module file that `baton dev` builds.
//! Swaps work as they do in `baton run`.

mod builder;
mod hint;
mod project;
mod tree;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};

use super::{WrongConfiguration, run};
use crate::cli::Development;
use crate::config::{self, Config, ConfigError, Environment, Key, Layer};
use baton_modules::ModuleSource;
use baton_node::telemetry::Format;
use baton_store::StoreUrl;
use builder::Builder;
pub(super) use builder::Workshop;
pub(super) use hint::hint_at_busy_instances;
use project::Project;

const NODE: &str = "dev";

pub(super) fn dev(given: Development) -> anyhow::Result<ExitCode> {
    let Development { folder, build, module, settings, around } = given;
    let wrong = |error: anyhow::Error| WrongConfiguration(error);
    let folder = folder.canonicalize().with_context(|| format!("there is no folder {}", folder.display()));
    let folder = folder.map_err(wrong)?;
    let project = Project::find(&folder, build.as_deref()).map_err(wrong)?;
    let module = module.map(|module| folder.join(module)).or(project.module);
    let config = configure(settings, module.as_deref(), &around).map_err(wrong)?;
    let builder = project.build.map(|command| Builder { command, folder, target: project.target });
    run::develop(&config, &Workshop::new(builder))
}

/// Resolves the settings of the only coordinator, whose module must be a file.
fn configure(settings: Layer, module: Option<&Path>, around: &Environment) -> anyhow::Result<Config> {
    // Set `node` and `store` to fixed values. The values do not matter to `baton dev`, but the defaults of these
    // settings would need a home folder.
    let settings = settings.flag(Key::Node, Some(NODE.to_owned())).flag(Key::Store, Some("sqlite:.".to_owned()));
    let module = module.map(|module| module.to_str().context("the module's path is not UTF-8")).transpose()?;
    let settings = settings.flag(Key::Module, module.map(str::to_owned));
    let resolved = config::resolve(&settings, around);
    let is_missing = |error: &ConfigError| module.is_none() && error.is_of_flag(Key::Module);
    let mut config = resolved.map_err(|error| if is_missing(&error) { nothing_to_run() } else { error })?;
    let [one] = &config.coordinators[..] else {
        return Err(anyhow!("baton.toml has several coordinators: choose one by naming its module with `--module`"));
    };
    if !matches!(one.module, ModuleSource::File(_)) {
        return Err(anyhow!(
            "the module {} is not a file that a build can write: name such a file with `--module`",
            one.module
        ));
    }
    config.store = StoreUrl::Memory;
    if config.log_format == Format::Text {
        config.log_format = Format::Brief;
    }
    Ok(config)
}

fn nothing_to_run() -> ConfigError {
    let problem =
        "there is nothing to run: name the file that the build writes, or set `module` in baton.toml".to_owned();
    ConfigError::of_argument("--module", problem)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::fs;

    use super::*;

    #[test]
    fn dev_config_has_one_module_file_and_a_memory_store() {
        let folder = tempfile::tempdir().unwrap();
        let around = Environment::artificial(&[("BATON_STORE", "azure://account/leases")], folder.path());
        let with = |file: &str, module: Option<&str>| {
            fs::write(folder.path().join("baton.toml"), file).unwrap();
            configure(Layer::new(), module.map(Path::new), &around)
        };
        let config = with("module = 'job.wasm'\nlease = '20s'\n", None).unwrap();
        assert_eq!(config.store, StoreUrl::Memory);
        assert_eq!(config.coordinators[0].module, ModuleSource::File(folder.path().join("job.wasm")));
        assert_eq!(config.coordinators[0].timing.lease().as_secs(), 20);
        let config = with("module = 'job.wasm'\nelection = 'one'\n", Some("/out/other.wasm")).unwrap();
        assert_eq!(config.coordinators[0].module, ModuleSource::File("/out/other.wasm".into()));
        assert_eq!(config.coordinators[0].election.as_str(), "one");

        let wrong = |file: &str, words: &str| {
            let error = with(file, None).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        wrong("", "--module: there is nothing to run");
        wrong("module = 'job.wasm'\nlease = 'x'\n", "baton.toml:2: lease");
        wrong("[coordinators.a]\nmodule = 'a.wasm'\n[coordinators.b]\nmodule = 'b.wasm'\n", "--module");
        wrong("module = 'store://job'\nelection = 'job'\n", "store://job");
    }
}
