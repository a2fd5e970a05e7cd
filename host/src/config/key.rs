//! The names of the settings. Flag, variable and key in `baton.toml` follow from one word.

/// One setting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// The configuration file.
    Config,
    /// The lease store.
    Store,
    /// Creates the store's container.
    Create,
    /// Accepts weaker isolation than wanted.
    AllowWeakerIsolation,
    /// This node's id.
    Node,
    /// Format of log lines.
    LogFormat,
    /// Address of the admin endpoint.
    Admin,
    /// File of the token that other machines need there.
    AdminTokenFile,
    /// Certificate of the admin endpoint.
    AdminTlsCert,
    /// Private key of that certificate.
    AdminTlsKey,
    /// URL of the admin endpoint for other machines.
    AdminAdvertise,
    /// Endpoint of Azure's scheduled events.
    ScheduledEvents,
    /// Takes the lease of a dead host of this machine before it expires.
    Reclaim,
    /// Links to the other hosts of its store.
    Links,
    /// Address where it listens for hosts of other machines.
    Peer,
    /// Address of that listener for other machines.
    PeerAdvertise,
    /// A label of this node.
    Label,
    /// Number of elections that it leads at most.
    MaxLeaderships,
    /// Folder for compiled modules.
    Cache,
    /// Source of the modules.
    Module,
    /// The election's name.
    Election,
    /// How early it takes a free lease.
    Priority,
    /// Hands over to a node of a higher priority.
    Preempt,
    /// The lease's length.
    Lease,
    /// Longest time that a stop may take.
    Grace,
    /// Time from the end of a term that was done to the next one.
    RestartDelay,
    /// Whether a coordinator that is done runs again.
    Restart,
    /// Longest time without progress.
    StallAfter,
    /// Length of a new version's probation.
    Probation,
    /// Folder for core dumps.
    Coredump,
    /// File for the profile of the last instance.
    Profile,
    /// The only modules that may run.
    Pin,
    /// Keys of which one must have signed a module.
    Trust,
    /// CPU time that compiling a module may take.
    CompileTimeout,
    /// Servers that a coordinator may send HTTP requests to.
    AllowHttp,
    /// Additional CA certificates for these servers.
    HttpCa,
    /// Requests in flight.
    MaxRequests,
    /// Memory of an instance.
    MaxMemory,
    /// Table elements of an instance.
    MaxTableElements,
    /// Core instances of an instance.
    MaxInstances,
    /// Handles of an instance.
    MaxHandles,
    /// Open files of an instance.
    MaxFiles,
    /// Output lines a second.
    MaxOutput,
    /// Size of a coordinator's state.
    MaxState,
    /// Size of one value of the state.
    MaxStateValue,
    /// Arguments of a command.
    Arg,
    /// An environment variable of the coordinator.
    Env,
    /// A configuration variable of the coordinator.
    ConfigVar,
    /// Source of one of the coordinator's secrets.
    Secret,
    /// A folder that the coordinator may use.
    Dir,
}

impl Key {
    /// All settings: first the host's, then those of a coordinator.
    pub const ALL: [Key; 50] = [
        Key::Config,
        Key::Store,
        Key::Create,
        Key::AllowWeakerIsolation,
        Key::Node,
        Key::LogFormat,
        Key::Admin,
        Key::AdminTokenFile,
        Key::AdminTlsCert,
        Key::AdminTlsKey,
        Key::AdminAdvertise,
        Key::ScheduledEvents,
        Key::Reclaim,
        Key::Links,
        Key::Peer,
        Key::PeerAdvertise,
        Key::Label,
        Key::MaxLeaderships,
        Key::Cache,
        Key::Module,
        Key::Election,
        Key::Priority,
        Key::Preempt,
        Key::Lease,
        Key::Grace,
        Key::RestartDelay,
        Key::Restart,
        Key::StallAfter,
        Key::Probation,
        Key::Coredump,
        Key::Profile,
        Key::Pin,
        Key::Trust,
        Key::CompileTimeout,
        Key::AllowHttp,
        Key::HttpCa,
        Key::MaxRequests,
        Key::MaxMemory,
        Key::MaxTableElements,
        Key::MaxInstances,
        Key::MaxHandles,
        Key::MaxFiles,
        Key::MaxOutput,
        Key::MaxState,
        Key::MaxStateValue,
        Key::Arg,
        Key::Env,
        Key::ConfigVar,
        Key::Secret,
        Key::Dir,
    ];

    /// Its key in `baton.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Key::Config => "config",
            Key::Store => "store",
            Key::Create => "create",
            Key::AllowWeakerIsolation => "allow-weaker-isolation",
            Key::Node => "node",
            Key::LogFormat => "log-format",
            Key::Admin => "admin",
            Key::AdminTokenFile => "admin-token-file",
            Key::AdminTlsCert => "admin-tls-cert",
            Key::AdminTlsKey => "admin-tls-key",
            Key::AdminAdvertise => "admin-advertise",
            Key::ScheduledEvents => "scheduled-events",
            Key::Reclaim => "reclaim",
            Key::Links => "links",
            Key::Peer => "peer",
            Key::PeerAdvertise => "peer-advertise",
            Key::Label => "label",
            Key::MaxLeaderships => "max-leaderships",
            Key::Cache => "cache",
            Key::Module => "module",
            Key::Election => "election",
            Key::Priority => "priority",
            Key::Preempt => "preempt",
            Key::Lease => "lease",
            Key::Grace => "grace",
            Key::RestartDelay => "restart-delay",
            Key::Restart => "restart",
            Key::StallAfter => "stall-after",
            Key::Probation => "probation",
            Key::Coredump => "coredump",
            Key::Profile => "profile",
            Key::Pin => "pin",
            Key::Trust => "trust",
            Key::CompileTimeout => "compile-timeout",
            Key::AllowHttp => "allow-http",
            Key::HttpCa => "http-ca",
            Key::MaxRequests => "max-requests",
            Key::MaxMemory => "max-memory",
            Key::MaxTableElements => "max-table-elements",
            Key::MaxInstances => "max-instances",
            Key::MaxHandles => "max-handles",
            Key::MaxFiles => "max-files",
            Key::MaxOutput => "max-output",
            Key::MaxState => "max-state",
            Key::MaxStateValue => "max-state-value",
            Key::Arg => "arg",
            Key::Env => "env",
            Key::ConfigVar => "config-var",
            Key::Secret => "secret",
            Key::Dir => "dir",
        }
    }

    /// Its flag.
    #[must_use]
    pub fn flag(self) -> String {
        match self {
            Key::Module => "MODULE".to_string(),
            _ => format!("--{}", self.name()),
        }
    }

    /// Its environment variable.
    #[must_use]
    pub fn variable(self) -> String {
        format!("BATON_{}", self.name().replace('-', "_").to_ascii_uppercase())
    }

    /// True if it is a table of named values.
    #[must_use]
    pub fn is_named(self) -> bool {
        matches!(self, Key::Env | Key::ConfigVar | Key::Secret | Key::Dir | Key::Label)
    }

    /// The form of its value in `baton.toml`.
    pub(crate) fn shape(self) -> Shape {
        match self {
            Key::Create | Key::AllowWeakerIsolation | Key::Preempt | Key::Reclaim | Key::Links => Shape::Switch,
            Key::Priority
            | Key::MaxLeaderships
            | Key::MaxRequests
            | Key::MaxTableElements
            | Key::MaxInstances
            | Key::MaxHandles
            | Key::MaxFiles
            | Key::MaxOutput => Shape::Number,
            Key::AllowHttp | Key::Pin | Key::Trust => Shape::TextOrList,
            Key::Arg | Key::Dir => Shape::List,
            Key::Env | Key::Label => Shape::Texts,
            Key::ConfigVar => Shape::Scalars,
            Key::Secret => Shape::Secrets,
            _ => Shape::Text,
        }
    }

    /// True if each coordinator has its own.
    #[must_use]
    pub fn is_per_coordinator(self) -> bool {
        self >= Key::Module
    }
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
    /// A table of tables that name a file or a variable.
    Secrets,
}

/// The settings that had another name before 0.1.0.
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

/// The setting that had this name before 0.1.0, if any.
pub(crate) fn renamed(old: &str) -> Option<Key> {
    RENAMED.iter().find(|(name, _)| *name == old).map(|(_, key)| *key)
}

/// The setting whose variable had this name before 0.1.0, if any.
pub(super) fn renamed_variable(name: &str) -> Option<Key> {
    let word = name.strip_prefix("BATON_")?.to_ascii_lowercase().replace('_', "-");
    // The variables of these have kept their names.
    renamed(&word).filter(|key| ![Key::Secret, Key::Dir, Key::Label].contains(key))
}

/// The word nearest to `typo`, if one is near enough.
pub(super) fn nearest<'a>(typo: &str, words: &[&'a str]) -> Option<&'a str> {
    let (distance, word) = words.iter().map(|word| (strsim::levenshtein(typo, word), *word)).min()?;
    (distance <= 2.max(word.len() / 3)).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_finds_the_nearest_legal_one() {
        let words: Vec<&str> = Key::ALL.map(Key::name).to_vec();
        assert_eq!(nearest("leese", &words), Some("lease"));
        assert_eq!(nearest("restart_delay", &words), Some("restart-delay"));
        assert_eq!(nearest("maxmemory", &words), Some("max-memory"));
        assert_eq!(nearest("colour-scheme", &words), None);
    }

    #[test]
    fn the_variable_follows_from_the_name() {
        assert_eq!(Key::StallAfter.variable(), "BATON_STALL_AFTER");
        assert_eq!(Key::Module.variable(), "BATON_MODULE");
    }
}
