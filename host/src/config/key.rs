//! The settings by name: flag, variable and key of the file follow from one word.

/// One setting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// The configuration file.
    File,
    /// The lease store.
    Store,
    /// Make what the store needs.
    Create,
    /// Do with less isolation than is wanted.
    AllowWeakerIsolation,
    /// This node's id.
    Node,
    /// How log lines look.
    LogFormat,
    /// Where the admin endpoint is.
    Admin,
    /// The token that other machines need there.
    AdminTokenFile,
    /// The certificate by which it is known to them.
    AdminTlsCert,
    /// The key of that.
    AdminTlsKey,
    /// Where others find it.
    AdminAdvertise,
    /// Who is asked what is planned for the machine.
    ScheduledEvents,
    /// Whether it is found out, and let be found out, that hosts of this machine are gone.
    Witness,
    /// Whether it tells the other nodes of its store, and hears of them.
    Links,
    /// Where it listens for those of other machines.
    Peer,
    /// Where those find it.
    Advertise,
    /// Something that people know this node by.
    Labels,
    /// How many elections it leads at the most.
    MaxLeading,
    /// Where compiled modules are kept.
    Cache,
    /// Where the modules come from.
    Module,
    /// The election's name.
    Election,
    /// How early it takes a lease that is free.
    Priority,
    /// Whether a leader hands over to a node of a higher one.
    Preempt,
    /// The lease's length.
    Lease,
    /// How long a stop may take.
    Grace,
    /// From done to the next term.
    Pause,
    /// What follows when an instance is done.
    OnDone,
    /// How long an instance may go without progress.
    StallAfter,
    /// How long a new version is on probation.
    Probation,
    /// Where the core dumps of instances that trap go.
    Coredump,
    /// Where the profile of the last instance goes.
    Profile,
    /// The modules that may run, and no others.
    Pin,
    /// Whose signature a module needs.
    Trust,
    /// How long compiling a module may take.
    CompileTimeout,
    /// The servers that a coordinator may ask over HTTP.
    AllowHttp,
    /// Whom such servers may be certified by, besides those whom everybody trusts.
    HttpCa,
    /// The requests that an instance may have in flight.
    MaxRequests,
    /// The memory that an instance may use.
    MaxMemory,
    /// The elements of tables that it may have.
    MaxTableElements,
    /// The core instances that it may consist of.
    MaxInstances,
    /// The handles that it may hold.
    MaxHandles,
    /// The files that it may have open.
    MaxFiles,
    /// The lines that it may print a second.
    MaxOutput,
    /// The state that a coordinator may keep.
    MaxState,
    /// One value of it.
    MaxStateValue,
    /// The arguments of a command.
    Args,
    /// A variable of the coordinator's environment.
    Env,
    /// A value of the coordinator's configuration.
    Config,
    /// Where one of the coordinator's secrets is.
    Secrets,
    /// A folder that the coordinator may use.
    Dirs,
}

impl Key {
    /// All settings: those of the host first, then those of a coordinator.
    pub const ALL: [Key; 50] = [
        Key::File,
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
        Key::Witness,
        Key::Links,
        Key::Peer,
        Key::Advertise,
        Key::Labels,
        Key::MaxLeading,
        Key::Cache,
        Key::Module,
        Key::Election,
        Key::Priority,
        Key::Preempt,
        Key::Lease,
        Key::Grace,
        Key::Pause,
        Key::OnDone,
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
        Key::Args,
        Key::Env,
        Key::Config,
        Key::Secrets,
        Key::Dirs,
    ];

    /// Its name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Key::File => "file",
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
            Key::Witness => "witness",
            Key::Links => "links",
            Key::Peer => "peer",
            Key::Advertise => "advertise",
            Key::Labels => "labels",
            Key::MaxLeading => "max-leading",
            Key::Cache => "cache",
            Key::Module => "module",
            Key::Election => "election",
            Key::Priority => "priority",
            Key::Preempt => "preempt",
            Key::Lease => "lease",
            Key::Grace => "grace",
            Key::Pause => "pause",
            Key::OnDone => "on-done",
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
            Key::Args => "args",
            Key::Env => "env",
            Key::Config => "config",
            Key::Secrets => "secrets",
            Key::Dirs => "dirs",
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn flag(self) -> String {
        match self {
            Key::Module => "MODULE".to_string(),
            Key::Args => "--arg".to_string(),
            Key::Secrets => "--secret".to_string(),
            Key::Dirs => "--dir".to_string(),
            Key::Labels => "--label".to_string(),
            _ => format!("--{}", self.name()),
        }
    }

    /// Its name as a variable.
    #[must_use]
    pub fn variable(self) -> String {
        let word = match self {
            Key::Secrets => "secret",
            Key::Dirs => "dir",
            Key::Labels => "label",
            _ => self.name(),
        };
        format!("BATON_{}", word.replace('-', "_").to_ascii_uppercase())
    }

    /// Whether it has many values, each under a name of its own.
    #[must_use]
    pub fn is_named(self) -> bool {
        matches!(self, Key::Env | Key::Config | Key::Secrets | Key::Dirs | Key::Labels)
    }

    /// Whether each coordinator has its own.
    #[must_use]
    pub fn is_per_coordinator(self) -> bool {
        self >= Key::Module
    }
}

/// The one of `words` that `typo` most likely meant, if any is near.
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
        assert_eq!(nearest("on_done", &words), Some("on-done"));
        assert_eq!(nearest("maxmemory", &words), Some("max-memory"));
        assert_eq!(nearest("colour-scheme", &words), None);
    }

    #[test]
    fn the_variable_follows_from_the_name() {
        assert_eq!(Key::StallAfter.variable(), "BATON_STALL_AFTER");
        assert_eq!(Key::Module.variable(), "BATON_MODULE");
    }
}
