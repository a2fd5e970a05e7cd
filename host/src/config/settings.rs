//! The settings table. Each entry defines a setting's flag, environment variable, `baton.toml` key, JSON Schema and
//! help.

/// An entry of the settings table.
#[derive(Debug)]
pub struct Setting {
    /// The key in `baton.toml`.
    pub name: &'static str,
    /// The form of the value in `baton.toml`.
    pub(crate) shape: Shape,
    /// Placeholder of the value in help, such as `DURATION`.
    pub(crate) value: &'static str,
    /// The only values that the flag accepts; empty if a parser checks the value.
    pub(crate) values: &'static [&'static str],
    pub(crate) short: Option<char>,
    /// Heading in the help of `baton run`, if any.
    pub(crate) heading: Option<&'static str>,
    /// True if `baton run -h` shows the setting; `--help` shows all.
    pub(crate) is_common: bool,
    /// True if each coordinator can have its own value.
    pub(crate) is_per_coordinator: bool,
    /// The default value; `None` if there is no default, or if only [`Self::shown_default`] describes it.
    pub(crate) default: Option<&'static str>,
    /// The default in words, if it depends on the machine or the module.
    pub(crate) shown_default: Option<&'static str>,
    /// First line of the help.
    pub(crate) help: &'static str,
    /// The help's second paragraph, if any.
    pub(crate) details: Option<&'static str>,
}

/// The form of a value in `baton.toml`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// A string.
    Text,
    /// A string, or several in an array.
    TextOrList,
    /// An array of strings.
    List,
    /// An integer, or a string.
    Number,
    /// A boolean.
    Switch,
    /// A table of strings.
    Texts,
    /// A table of strings, numbers and booleans.
    Scalars,
    /// A table of tables, each of which contains a file or a variable.
    Secrets,
}

/// Headings of `baton run --help`.
const LEADERSHIP: &str = "Leadership";
const COORDINATOR: &str = "Coordinator";
const VERSIONS: &str = "Versions";
const LIMITS: &str = "Limits";
const ENDPOINT: &str = "Admin endpoint";
const MACHINES: &str = "Machine and network";

const fn setting(name: &'static str, shape: Shape, value: &'static str, help: &'static str) -> Setting {
    Setting {
        name,
        shape,
        value,
        values: &[],
        short: None,
        heading: None,
        is_common: false,
        is_per_coordinator: false,
        default: None,
        shown_default: None,
        help,
        details: None,
    }
}

const fn switch(name: &'static str, default: &'static str, help: &'static str) -> Setting {
    setting(name, Shape::Switch, "BOOL", help).default(default)
}

impl Setting {
    const fn common(self) -> Self {
        Self { is_common: true, ..self }
    }

    /// Makes this a setting that each coordinator can set for itself. The help lists the setting under this heading.
    const fn of_coordinator(self, heading: &'static str) -> Self {
        Self { is_per_coordinator: true, heading: Some(heading), ..self }
    }

    const fn under(self, heading: &'static str) -> Self {
        Self { heading: Some(heading), ..self }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn shown_default(self, words: &'static str) -> Self {
        Self { shown_default: Some(words), ..self }
    }

    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    const fn one_of(self, values: &'static [&'static str]) -> Self {
        Self { values, ..self }
    }

    pub(crate) fn default_text(&self) -> Option<&'static str> {
        self.shown_default.or(self.default)
    }

    const fn details(self, details: &'static str) -> Self {
        Self { details: Some(details), ..self }
    }
}

impl Shape {
    /// True if the setting can have several values, so that its flag is repeatable.
    pub(crate) fn is_repeatable(self) -> bool {
        !matches!(self, Self::Text | Self::Number | Self::Switch)
    }
}

macro_rules! settings {
    ($($key:ident = $entry:expr;)+) => {
        /// A setting: the key of an entry in the settings table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Key {
            $(#[doc = concat!("The setting `", stringify!($key), "`.")] $key,)+
        }

        impl Key {
            /// All settings, in the order of the help.
            pub const ALL: &[Key] = &[$(Key::$key),+];

            /// Returns the setting's entry in the settings table.
            #[must_use]
            pub fn setting(self) -> &'static Setting {
                match self {
                    $(Key::$key => const { &$entry },)+
                }
            }
        }
    };
}

settings! {
    Module = Setting {
        is_per_coordinator: true,
        ..setting("module", Shape::Text, "MODULE", "Component to run: a file, store://ELECTION or oci://REGISTRY/REPOSITORY:TAG")
    }
    .common();
    Election = Setting { is_per_coordinator: true, ..setting("election", Shape::Text, "NAME", "Election to contend in") }
        .shown_default("the module's name")
        .common();
    Store = setting("store", Shape::Text, "URL", "Lease store: sqlite:DIR, azure://ACCOUNT/CONTAINER or azurite")
        .short('s')
        .common()
        .details(
            "All nodes of a fleet must use the same store. By default, all nodes that this user runs on this machine \
             share an SQLite store in the user's state folder. You can also name an Azure container by its URL: \
             https://ACCOUNT.blob.core.windows.net/CONTAINER.",
        );
    Config = setting("config", Shape::Text, "PATH", "Configuration file")
        .shown_default("baton.toml, if it exists")
        .short('c')
        .common();
    Create = switch("create", "false", "Create the Azure store's container if it does not exist")
        .details("Baton always creates the folder of an SQLite store.");
    Node = setting("node", Shape::Text, "ID", "ID of this node")
        .shown_default("the host name and a number")
        .common();
    LogFormat = setting("log-format", Shape::Text, "FORMAT", "Log format: text or json")
        .default("text")
        .one_of(&["text", "json"])
        .common();

    Lease = setting("lease", Shape::Text, "DURATION", "How long a lease lasts unless it is renewed")
        .default("15s")
        .of_coordinator(LEADERSHIP)
        .common();
    Grace = setting("grace", Shape::Text, "DURATION", "How long the coordinator may take to stop when asked")
        .default("5s")
        .of_coordinator(LEADERSHIP)
        .common();
    Priority = setting("priority", Shape::Number, "NUMBER", "Priority from 0 to 100 for taking a free lease")
        .default("100")
        .details("At 100, this node takes a free lease at once. At 0, it waits up to 2 s first.")
        .of_coordinator(LEADERSHIP)
        .common();
    Preempt = switch("preempt", "false", "Hand over to a node with a higher priority")
        .details(
            "The other node must be eligible and have the same module ready. If an operator made this node the \
             leader, it does not hand over.",
        )
        .of_coordinator(LEADERSHIP)
        .common();
    StallAfter = setting("stall-after", Shape::Text, "DURATION", "Step down after this long without progress")
        .default("off")
        .of_coordinator(LEADERSHIP)
        .common();

    Restart = setting(
        "restart",
        Shape::Text,
        "POLICY",
        "When to run again: always or on-failure",
    )
    .default("always")
    .one_of(&["always", "on-failure"])
    .details(
        "With on-failure, a coordinator that is done does not run again until you push a new version or run \
         `baton rerun`. A coordinator that failed always runs again.",
    )
    .of_coordinator(COORDINATOR)
    .common();
    RestartDelay = setting("restart-delay", Shape::Text, "DURATION", "Time between a finished run and the next term")
        .default("60s")
        .of_coordinator(COORDINATOR)
        .common();
    Schedule = setting("schedule", Shape::Text, "CRON", "Times at which to run: a cron pattern, such as @daily")
        .default("none")
        .details(
            "Each due time runs once in the whole fleet, and again if it is cut short. Between runs, the leader runs \
             nothing. `restart` and `restart-delay` do not apply.",
        )
        .of_coordinator(COORDINATOR)
        .common();
    TimeZone = setting("time-zone", Shape::Text, "NAME", "Time zone of the schedule, such as Europe/Berlin")
        .default("UTC")
        .of_coordinator(COORDINATOR);
    Missed = setting("missed", Shape::Text, "POLICY", "Runs that could not begin within 10 minutes: run-once or skip")
        .default("run-once")
        .one_of(&["run-once", "skip"])
        .details("With run-once, the latest missed run begins as soon as a node leads. Earlier ones are dropped.")
        .of_coordinator(COORDINATOR);
    Shards = setting("shards", Shape::Number, "NUMBER", "Number of parts of the work, each with its own leader")
        .default("1")
        .details(
            "Each shard has its own lease, term and state, and one instance in the fleet. The nodes share the shards \
             evenly. All nodes need the same number.",
        )
        .of_coordinator(COORDINATOR);
    AllowHttp = setting("allow-http", Shape::TextOrList, "URL", "Server that the coordinator may call over HTTP")
        .details(
            "Write the scheme, the host and, optionally, a port and a path prefix: https://api.example.com/v1. \
             https://*.example.com matches all subdomains. With #private, the name may resolve to private addresses: \
             http://worker:8080#private.",
        )
        .of_coordinator(COORDINATOR)
        .common();
    Dir = setting(
        "dir",
        Shape::List,
        "HOST::GUEST[:ro]",
        "Host folder to share, and its path in the sandbox",
    )
    .details(
        "With `:ro`, access is read-only. Writes that the operating system accepted before the term ended may still \
         take effect afterwards. In baton.toml: dir = [\"/srv/data::/data\"].",
    )
    .of_coordinator(COORDINATOR)
    .common();
    Env = setting("env", Shape::Texts, "K=V", "Environment variable for the coordinator")
        .short('e')
        .details(
            "The coordinator does not inherit the host's environment variables. Variables from flags, BATON_ENV and \
             the `env` table in baton.toml are merged by name.",
        )
        .of_coordinator(COORDINATOR)
        .common();
    ConfigVar = setting("config-var", Shape::Scalars, "K=V", "Configuration variable for the coordinator")
        .details(
            "The coordinator sees it as an environment variable and through wasi:config/store. Variables from several \
             sources are merged as for --env.",
        )
        .of_coordinator(COORDINATOR)
        .common();
    Secret = setting("secret", Shape::Secrets, "K=SOURCE", "Secret: K=file:PATH or K=env:VARIABLE")
        .details(
            "The coordinator reads a secret in the same way as a variable set with --config-var. Baton never shows the \
             secret's value, and rereads the file for each term. In baton.toml: secret = { token = { file = \"PATH\" } \
             }.",
        )
        .of_coordinator(COORDINATOR)
        .common();
    Arg = setting("arg", Shape::List, "TEXT", "Argument to pass to a WASI command")
        .details(
            "The command receives the election's name as its program name. In baton.toml: arg = [\"--verbose\", \
             \"report.csv\"].",
        )
        .of_coordinator(COORDINATOR);
    HttpCa = setting(
        "http-ca",
        Shape::Text,
        "PATH",
        "Additional CA certificates (PEM) for the servers allowed by --allow-http",
    )
    .default("none")
    .of_coordinator(COORDINATOR);

    Probation = setting("probation", Shape::Text, "DURATION", "Time in which failures of a new version roll it back")
        .default("30s")
        .of_coordinator(VERSIONS)
        .common();
    Pin = setting("pin", Shape::TextOrList, "DIGEST", "Run only modules with this digest")
        .details("In baton.toml: pin = [\"sha256:…\"]. `baton check` prints a module's digest.")
        .of_coordinator(VERSIONS);
    Trust = setting("trust", Shape::TextOrList, "KEYFILE", "Run only modules signed with a minisign key from this file")
        .details("The file, such as minisign.pub, may hold several keys. In baton.toml: trust = [\"minisign.pub\"].")
        .of_coordinator(VERSIONS);
    CompileTimeout = setting("compile-timeout", Shape::Text, "DURATION", "CPU time limit for compiling a module")
        .default("60s")
        .details(
            "The limit applies to the total CPU time of all compiler threads. If compilation takes more than ten \
             minutes of wall-clock time, and more than ten times this limit, the host stops it and tries again later.",
        )
        .of_coordinator(VERSIONS);
    Cache = setting(
        "cache",
        Shape::Text,
        "DIR",
        "Folder for compiled modules, private to this user; off to disable the cache",
    )
    .shown_default("~/.cache/baton")
    .under(VERSIONS);

    MaxMemory = setting("max-memory", Shape::Text, "SIZE", "Maximum memory of the instance")
        .default("256MiB")
        .of_coordinator(LIMITS)
        .common();
    MaxState = setting("max-state", Shape::Text, "SIZE", "Maximum size of the coordinator's state")
        .default("4MiB")
        .details("Keys and values count.")
        .of_coordinator(LIMITS)
        .common();
    MaxRequests = setting("max-requests", Shape::Number, "NUMBER", "Maximum number of HTTP requests in flight")
        .default("64")
        .of_coordinator(LIMITS);
    MaxOutput = setting(
        "max-output",
        Shape::Number,
        "LINES",
        "Maximum number of lines per second that the coordinator may print and log",
    )
    .default("500")
    .of_coordinator(LIMITS);

    Admin = setting(
        "admin",
        Shape::Text,
        "ADDRESS:PORT",
        "Address on which to serve the status page, the probes and the metrics",
    )
    .shown_default("127.0.0.1:7070 (or the next free port)")
    .details(
        "`none` disables the endpoint. Any client that can reach the address may read /livez, /readyz, \
         /leader/ELECTION and /metrics.",
    )
    .under(ENDPOINT)
    .common();
    AdminTokenFile = setting(
        "admin-token-file",
        Shape::Text,
        "PATH",
        "File with the token for logs and steering",
    )
    .default("none")
    .details(
        "Requests from other machines need the token and TLS, except requests for probes and metrics. The host \
         rereads the file on every request.",
    )
    .under(ENDPOINT)
    .common();
    AdminTlsCert = setting(
        "admin-tls-cert",
        Shape::Text,
        "PATH",
        "The endpoint's certificate chain (PEM), starting with its own certificate",
    )
    .default("none")
    .under(ENDPOINT);
    AdminTlsKey = setting("admin-tls-key", Shape::Text, "PATH", "Private key for the endpoint's own certificate (PEM)")
        .default("none")
        .under(ENDPOINT);
    AdminAdvertise = setting(
        "admin-advertise",
        Shape::Text,
        "URL",
        "URL at which other machines reach the endpoint, or `own` for the --admin address",
    )
    .default("own")
    .details(
        "The node announces this URL in the store. It announces a loopback address only if the store is local to this \
         machine.",
    )
    .under(ENDPOINT);

    Label = setting("label", Shape::Texts, "K=V", "Label of this node, such as zone=west")
        .details(
            "`baton nodes`, `baton status` and the metrics show the label. In baton.toml: label = { zone = \"west\" }.",
        )
        .under(MACHINES);
    MaxLeaderships = setting(
        "max-leaderships",
        Shape::Number,
        "NUMBER",
        "Maximum number of elections that this host may lead at once; off for no limit",
    )
    .default("off")
    .details("If no other node takes a free lease within 10 s, this host takes the lease and exceeds this number.")
    .under(MACHINES);
    Reclaim = switch("reclaim", "true", "Take the lease of a dead host on this machine before the lease expires")
        .details(
            "The kernel reports whether the lease holder and its runners are dead. On Azure, the host also needs the \
             lease ID, which the lease holder saved in a file in the state folder. Set this to false if you checkpoint \
             and restore processes (CRIU): the kernel cannot know that such a process may come back.",
        )
        .under(MACHINES);
    Links = switch("links", "true", "Exchange hints with other hosts, so that standbys poll the store less often")
        .details(
            "Hosts that share an SQLite store connect through sockets in its folder. Hosts on different machines need \
             --peer.",
        )
        .under(MACHINES);
    Peer = setting(
        "peer",
        Shape::Text,
        "ADDRESS:PORT",
        "Address on which to accept connections from hosts on other machines; off to disable",
    )
    .default("off")
    .details(
        "The connections use TLS with a key that the host generates at each start. Any client that can write to the \
         store can pose as a node on this address. With port 0, the system chooses a port.",
    )
    .under(MACHINES);
    PeerAdvertise = setting(
        "peer-advertise",
        Shape::Text,
        "HOST:PORT",
        "Address at which other machines reach this host's peer listener, or `own` for the --peer address",
    )
    .default("own")
    .under(MACHINES);
    ScheduledEvents = setting(
        "scheduled-events",
        Shape::Text,
        "WHERE",
        "Source of maintenance events: auto (Azure's service, if this machine is on Azure), off, or http://HOST",
    )
    .default("auto")
    .details(
        "Before its machine is frozen, rebooted, redeployed, preempted or terminated, the node steps down and then \
         acknowledges the event.",
    )
    .under(MACHINES);
    AllowWeakerIsolation = switch(
        "allow-weaker-isolation",
        "false",
        "Run even if this kernel cannot isolate coordinators fully",
    )
    .details(
        "Without Landlock, a coordinator that escapes its sandbox is not confined to the granted folders.",
    )
    .under(MACHINES);
}

impl Key {
    /// The key in `baton.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.setting().name
    }

    /// Returns the flag, such as `--lease`, or `MODULE` for the module, which is a positional argument.
    #[must_use]
    pub fn flag(self) -> String {
        match self {
            Key::Module => "MODULE".to_string(),
            _ => format!("--{}", self.name()),
        }
    }

    /// Returns the name of the environment variable, such as `BATON_LEASE`.
    #[must_use]
    pub fn variable(self) -> String {
        format!("BATON_{}", self.name().replace('-', "_").to_ascii_uppercase())
    }

    /// True if the setting can have several values, each with its own name.
    #[must_use]
    pub fn is_named(self) -> bool {
        matches!(self.shape(), Shape::Texts | Shape::Scalars | Shape::Secrets) || self == Key::Dir
    }

    pub(crate) fn shape(self) -> Shape {
        self.setting().shape
    }

    /// True if each coordinator can have its own value.
    #[must_use]
    pub fn is_per_coordinator(self) -> bool {
        self.setting().is_per_coordinator
    }
}

/// Settings that were renamed before 0.1.0, by their old names.
const RENAMED: [(&str, Key); 10] = [
    ("file", Key::Config),
    ("pause", Key::RestartDelay),
    ("on-done", Key::Restart),
    ("advertise", Key::PeerAdvertise),
    ("max-leading", Key::MaxLeaderships),
    ("witness", Key::Reclaim),
    ("args", Key::Arg),
    ("secrets", Key::Secret),
    ("dirs", Key::Dir),
    ("labels", Key::Label),
];

/// The settings that were removed before 0.1.0, with advice.
const REMOVED: [(&str, &str); 7] = [
    ("coredump", "for a WASI command, use wasmtime's command line"),
    ("profile", "for a WASI command, use wasmtime's command line"),
    ("max-table-elements", "the limit is 1000000"),
    ("max-instances", "the limit is 1000"),
    ("max-handles", "the limit is 50000"),
    ("max-files", "the limit is 256"),
    ("max-state-value", "a value may be as large as `max-state`"),
];

/// Returns advice if `name` is a setting that was removed before 0.1.0.
pub(crate) fn removed(name: &str) -> Option<&'static str> {
    REMOVED.iter().find(|(removed, _)| *removed == name).map(|(_, advice)| *advice)
}

pub(super) fn removed_variable(name: &str) -> Option<&'static str> {
    removed(&name.strip_prefix("BATON_")?.to_ascii_lowercase().replace('_', "-"))
}

/// The setting that had this name before 0.1.0, if any.
pub(crate) fn renamed(old: &str) -> Option<Key> {
    RENAMED.iter().find(|(name, _)| *name == old).map(|(_, key)| *key)
}

pub(super) fn renamed_variable(name: &str) -> Option<Key> {
    let word = name.strip_prefix("BATON_")?.to_ascii_lowercase().replace('_', "-");
    // These three settings were renamed, but their variables were not: `secrets` is now `secret`, but its variable
    // already was `BATON_SECRET`. A variable such as `BATON_SECRETS` is therefore not an old name.
    renamed(&word).filter(|key| ![Key::Secret, Key::Dir, Key::Label].contains(key))
}

/// The word that is most similar to `typo`, if any is similar enough.
pub(super) fn nearest<'a>(typo: &str, words: &[&'a str]) -> Option<&'a str> {
    let (distance, word) = words.iter().map(|word| (strsim::levenshtein(typo, word), *word)).min()?;
    (distance <= 2.max(word.len() / 3)).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_setting_is_found_for_a_misspelt_word() {
        let words: Vec<&str> = Key::ALL.iter().map(|key| key.name()).collect();
        assert_eq!(nearest("leese", &words), Some("lease"));
        assert_eq!(nearest("restart_delay", &words), Some("restart-delay"));
        assert_eq!(nearest("maxmemory", &words), Some("max-memory"));
        assert_eq!(nearest("colour-scheme", &words), None);
    }

    #[test]
    fn variable_is_derived_from_the_name() {
        assert_eq!(Key::StallAfter.variable(), "BATON_STALL_AFTER");
        assert_eq!(Key::Module.variable(), "BATON_MODULE");
    }
}
