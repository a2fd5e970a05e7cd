//! Interfaces that can be imported without a grant. Most language runtimes import files and sockets, even if the
//! program uses neither. If the program uses one of these interfaces, it gets an ordinary error of its language. The
//! host's log then names the missing grant.

use std::sync::Arc;

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{
    instance_network, ip_name_lookup, network, tcp, tcp_create_socket, udp, udp_create_socket,
};
use wasmtime_wasi::p2::{DynPollable, SocketError, TcpSocket, UdpSocket};
use wasmtime_wasi::sockets::{WasiSockets, WasiSocketsView as _};

use crate::runner::guest::Guest;
use crate::wire::output::{Notice, Output};

/// The packages that can be imported without a grant, each with the consequence of having no grant.
pub(crate) const EMPTY: &[(&str, &str)] = &[
    ("wasi:filesystem", "no files without `--dir`: opening a file fails"),
    ("wasi:http", "no requests without `--allow-http URL`: the host refuses requests to other servers"),
    ("wasi:sockets", "no sockets: opening a socket fails"),
];

const FILES: &str = "files";
const NO_FOLDERS: &str = "`--dir HOST::GUEST` grants a folder";
const READ_ONLY: &str = "`--dir HOST::GUEST` without `:ro` grants write access";
const NO_SOCKETS: &str = "no flag grants sockets; `--allow-http` grants requests through wasi:http";

/// Links the socket interfaces, so that guests that import them can start. Every call fails, since sockets are never
/// granted. The module `files` links the file interfaces.
pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    network::add_to_linker::<Guest, WasiSockets>(linker, &network::LinkOptions::default(), Guest::sockets)?;
    instance_network::add_to_linker::<Guest, WasiSockets>(linker, Guest::sockets)?;
    tcp::add_to_linker::<Guest, WasiSockets>(linker, Guest::sockets)?;
    udp::add_to_linker::<Guest, WasiSockets>(linker, Guest::sockets)?;
    tcp_create_socket::add_to_linker::<Guest, Refuser>(linker, |guest| Refused(guest))?;
    udp_create_socket::add_to_linker::<Guest, Refuser>(linker, |guest| Refused(guest))?;
    ip_name_lookup::add_to_linker::<Guest, Refuser>(linker, |guest| Refused(guest))
}

/// Reports to the host when an instance tries to use something without a grant. Reports only the first attempt of each
/// kind.
pub(crate) struct Denials {
    output: Arc<dyn Output>,
    told: Vec<&'static str>,
}

impl Denials {
    /// Creates the reporter of an instance. If `asks_for_folders` is true, the reporter does not report missing
    /// folders, since the module always asks for folders, even if it needs none.
    pub(crate) fn new(output: Arc<dyn Output>, asks_for_folders: bool) -> Self {
        let told = if asks_for_folders { vec![FILES] } else { Vec::new() };
        Self { output, told }
    }

    pub(crate) fn tell_no_folders(&mut self) {
        self.tell(FILES, "", NO_FOLDERS);
    }

    pub(crate) fn report_read_only(&mut self) {
        self.tell("write access to a read-only folder", "", READ_ONLY);
    }

    fn tell(&mut self, kind: &'static str, detail: &str, remedy: &str) {
        if !self.told.contains(&kind) {
            self.told.push(kind);
            self.output.notice(Notice::Denied { what: &format!("{kind}{detail}"), remedy });
        }
    }
}

struct Refuser;

impl HasData for Refuser {
    type Data<'a> = Refused<'a>;
}

struct Refused<'a>(&'a mut Guest);

impl Refused<'_> {
    fn refuse<T>(&mut self, kind: &'static str, detail: &str) -> Result<T, SocketError> {
        self.0.denials.tell(kind, detail, NO_SOCKETS);
        Err(ErrorCode::AccessDenied.into())
    }
}

impl tcp_create_socket::Host for Refused<'_> {
    fn create_tcp_socket(&mut self, _: IpAddressFamily) -> Result<Resource<TcpSocket>, SocketError> {
        self.refuse("a TCP socket", "")
    }
}

impl udp_create_socket::Host for Refused<'_> {
    async fn create_udp_socket(&mut self, _: IpAddressFamily) -> Result<Resource<UdpSocket>, SocketError> {
        self.refuse("a UDP socket", "")
    }
}

impl ip_name_lookup::Host for Refused<'_> {
    fn resolve_addresses(
        &mut self,
        _: Resource<Network>,
        name: String,
    ) -> Result<Resource<ip_name_lookup::ResolveAddressStream>, SocketError> {
        // A DNS name has at most 253 characters.
        let name: String = name.chars().take(253).collect();
        self.refuse("a DNS lookup", &format!(" ({name})"))
    }
}

/// No `ResolveAddressStream` is ever created, so the resource table rejects every handle.
impl ip_name_lookup::HostResolveAddressStream for Refused<'_> {
    fn resolve_next_address(
        &mut self,
        stream: Resource<ip_name_lookup::ResolveAddressStream>,
    ) -> Result<Option<IpAddress>, SocketError> {
        self.0.sockets().resolve_next_address(stream)
    }

    fn subscribe(
        &mut self,
        stream: Resource<ip_name_lookup::ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        ip_name_lookup::HostResolveAddressStream::subscribe(&mut self.0.sockets(), stream)
    }

    fn drop(&mut self, stream: Resource<ip_name_lookup::ResolveAddressStream>) -> wasmtime::Result<()> {
        ip_name_lookup::HostResolveAddressStream::drop(&mut self.0.sockets(), stream)
    }
}

/// The generated bindings require this trait for interfaces whose calls return error codes.
impl network::Host for Refused<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(&mut self, error: Resource<wasmtime::Error>) -> wasmtime::Result<Option<ErrorCode>> {
        self.0.sockets().network_error_code(error)
    }
}

impl network::HostNetwork for Refused<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        network::HostNetwork::drop(&mut self.0.sockets(), network)
    }
}
